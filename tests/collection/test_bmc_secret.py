"""The filter bmc_secret: tests/cluster/test_bmc_inventory.py has the role, and what the BMC reader reads."""

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

PASSWORD = "C0rrect-horse"
ENTRY = {"url": "https://10.0.0.1", "username": "reader", "password": PASSWORD, "ca": "bmc.pem"}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"url": "bmc-1"}, "gpu-1: bmc_inventory_url cannot be used; give https://HOST"),
        ({"ca": "other.pem"}, "gpu-1: bmc_inventory_ca cannot be used"),
        ({"fingerprint": "abc"}, "gpu-1: bmc_inventory_fingerprint cannot be used"),
        ({"insecure": "maybe"}, "gpu-1: bmc_inventory_insecure"),
        ({"node": "Not A Node"}, "set bmc_inventory_node"),
        ({"password": None}, "gpu-1: bmc_inventory_password is missing"),
        ({"password": 12345678901}, "gpu-1: bmc_inventory_password cannot be used; give the password"),
    ],
)
def test_a_wrong_variable_is_named_with_its_host(plugin: Any, entry: dict[str, Any], says: str) -> None:
    hosts = {"gpu-1": {f"bmc_inventory_{field}": value for field, value in (ENTRY | entry).items()}}
    known = {"bmc.pem": "BEGIN CERTIFICATE"}
    with pytest.raises(AnsibleFilterError) as caught:
        plugin("filter.bmc_secret").secret(hosts, hosts, name="s", namespace="n", certificates=known)
    assert says in str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert "12345678901" not in str(caught.value)
