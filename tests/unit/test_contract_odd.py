"""Documents that no healthy driver makes, and that come back as they were all the same."""

from __future__ import annotations

from nodegauge_contract import Gpu, LinkGroup, Nics, Port, Result, decode, encode_message
from nodegauge_contract.wire import codec


def there_and_back(result: Result) -> Result:
    message = encode_message(result)
    assert message.startswith(codec.PREFIX)
    return decode(message)


def test_numbers_too_large_to_scale_are_written_out() -> None:
    """A thousand times the largest float is infinite."""
    rates = [1e308, *(number + 0.5 for number in range(40))]
    ports = [Port(nic=0, port=number, rate_gbps=rate) for number, rate in enumerate(rates)]
    result = Result(probe="health", nics=Nics(names=["mlx5_0"], ports=ports))
    assert there_and_back(result) == result


def test_a_required_list_comes_back_empty() -> None:
    """Nothing in any row is not the same as nothing written, where a member has no default."""
    result = Result(probe="health", gpus=[Gpu(index=n, links=[LinkGroup(links=[])]) for n in range(9)])
    assert there_and_back(result) == result
