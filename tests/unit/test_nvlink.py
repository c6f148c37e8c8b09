"""NV# counting: both rules, and every way in which a link can fail to be counted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import LinkGroup, Problem, ProblemKind, Result, Unavailable
from nodegauge_contract.nvlink import Doubt, lanes


def doubts(result: Result) -> list[tuple[int, Doubt]]:
    """Who has which doubt."""
    return [(doubt.gpu, doubt.doubt) for doubt in lanes(result).unresolved]


def test_a_recorded_mesh_is_counted_pair_by_pair() -> None:
    """A DGX-1's links come out as the matrix that was recorded on one."""
    counted = lanes(made.dgx1())
    assert counted.pair == made.DGX1_NV
    assert counted.sums == (6,) * 8
    assert not counted.switched
    assert counted.rates == (25_781,) * 8
    assert counted.unresolved == ()


def test_behind_switches_every_pair_has_the_smaller_number_of_switch_links() -> None:
    """NV# of a pair is the minimum of both GPUs' links to switches, and its sum is its own."""
    counted = lanes(made.without_links(made.h100(4), 2, count=3))
    assert counted.switched
    assert counted.sums == (18, 18, 15, 18)
    assert counted.pair[0] == (0, 18, 15, 18)
    assert counted.pair[2] == (15, 15, 0, 15)


def test_a_switch_is_known_by_field_147_where_the_driver_hides_the_far_end() -> None:
    """Links without a readable far end lead to switches when the GPU counts switch links."""
    result = made.h100(4)
    for index in range(4):
        result = made.with_links(result, index, remote=Unavailable("NotSupported"), remote_type=255)
    assert lanes(result).pair[0] == (0, 18, 18, 18)
    for index in range(4):
        result = made.with_gpu(result, index, switch_links=0)
    assert lanes(result).sums == (0, 0, 0, 0)
    assert {doubt for _, doubt in doubts(result)} == {Doubt.REMOTE}


def test_a_switch_is_known_by_the_type_of_the_far_end_alone() -> None:
    """The remote type is enough where field 147 does not exist (drivers before r460)."""
    result = made.h100(4)
    for index in range(4):
        result = made.with_gpu(result, index, switch_links=Unavailable("FunctionNotFound"))
    assert lanes(result).pair[0] == (0, 18, 18, 18)


def test_a_link_that_names_its_own_gpu_is_given_to_the_only_peer_with_nvlink_p2p() -> None:
    """The NCv4 trap: self-links are resolved by P2P status, not believed."""
    counted = lanes(made.ncv4())
    assert counted.pair == lanes(made.a100_bridged_pairs()).pair
    assert counted.unresolved == ()


def test_a_self_link_with_two_possible_peers_is_not_guessed() -> None:
    """With P2P OK to more than one peer nothing says which; the doubt says so."""
    result = made.with_pair(made.ncv4(), 0, 2, nvlink=0)
    counted = lanes(result)
    assert counted.pair[0][1] == counted.pair[0][2] == 0
    assert (0, Doubt.REMOTE) in doubts(result)
    reason = counted.unresolved[0].reason
    assert "the GPU itself" in reason
    assert "2 peers" in reason


@pytest.mark.parametrize("remote", ["", Unavailable("Uninitialized")], ids=["empty", "unreadable"])
def test_an_unnamed_far_end_is_resolved_like_a_self_link(remote: str | Unavailable) -> None:
    """Empty and unreadable far ends fall back on P2P status too."""
    result = made.titan()
    for index in range(2):
        result = made.with_links(result, index, remote=remote)
    assert lanes(result).pair == ((0, 2), (2, 0))


def test_a_link_to_a_gpu_that_was_not_shown_is_hidden_and_not_given_to_anyone() -> None:
    """Two GPUs of a DGX-1: links to the other six are not this pair's, although P2P is OK with one peer."""
    whole = made.dgx1()
    result = replace(whole, gpus=whole.gpus[:2], pairs=made.pairs([[0, 1], [1, 0]]))
    counted = lanes(result)
    assert counted.pair == ((0, 1), (1, 0))
    assert {doubt for _, doubt in doubts(result)} == {Doubt.HIDDEN}
    assert sum(len(doubt.links) for doubt in counted.unresolved) == 10


def test_one_gpu_alone_whose_links_name_another_gpu_tells_of_a_hidden_one() -> None:
    """With a single GPU in the document nobody can vouch for names, and there is nobody else it could be."""
    whole = made.dgx1()
    result = replace(whole, gpus=whole.gpus[:1], pairs=made.pairs([[0]]))
    assert {doubt for _, doubt in doubts(result)} == {Doubt.HIDDEN}


def test_a_gpu_whose_address_could_not_be_read_is_not_called_hidden() -> None:
    """Where one GPU's own id is unknown, a strange name may be that GPU."""
    result = made.with_gpu(made.dgx1(), 3, pci=Unavailable("GpuIsLost"))
    assert Doubt.HIDDEN not in {doubt for _, doubt in doubts(result)}
    assert Doubt.REMOTE in {doubt for _, doubt in doubts(result)}


@pytest.mark.parametrize(
    ("state", "doubt"),
    [
        (0, None),
        (2, Doubt.ASLEEP),
        (3, Doubt.TRAFFIC_DISABLED),
        (9, Doubt.STATE),
        (Unavailable("Unknown"), Doubt.STATE),
        (Unavailable("NVMLError_NotSupported: Not Supported"), None),
        (Unavailable("Invalid Argument"), None),
    ],
)
def test_only_an_active_link_counts(state: int | Unavailable, doubt: Doubt | None) -> None:
    """Inactive and absent links are zero; asleep, disabled and unreadable ones are a doubt, not a zero."""
    result = made.titan()
    for index in range(2):
        result = made.with_links(result, index, state=state)
    assert lanes(result).sums == (0, 0)
    assert {d for _, d in doubts(result)} == ({doubt} if doubt else set())


def test_a_link_that_cannot_carry_peer_traffic_does_not_count() -> None:
    """P2P_SUPPORTED false is an answer; not readable is a doubt (NCCL skips the one and the other)."""
    assert lanes(made.with_links(made.titan(), 0, p2p=0)).pair == ((0, 0), (0, 0))
    assert doubts(made.with_links(made.titan(), 0, p2p=0)) == []
    assert doubts(made.with_links(made.titan(), 0, p2p=Unavailable("Unknown"))) == [(0, Doubt.CAPABILITY)]


def test_a_direct_link_counts_only_when_both_ends_report_it() -> None:
    """One end down is a link down, for the pair and for both sums."""
    counted = lanes(made.without_links(made.titan(), 0, count=1))
    assert counted.pair == ((0, 1), (1, 0))
    assert counted.sums == (1, 1)


def test_a_gpu_that_could_not_be_read_has_no_say_in_its_peers_links() -> None:
    """What a healthy GPU reports stands where the other end is lost."""
    lost = Problem(kind=ProblemKind.GPU_LOST)
    assert lanes(made.with_gpu(made.titan(), 1, error=lost, links=[])).pair == ((0, 2), (2, 0))


def test_links_to_a_cpu_are_not_between_gpus() -> None:
    """NPU links (POWER9) neither count nor raise a doubt."""
    result = made.with_links(made.titan(), 0, remote="0004:04:00.0", remote_type=1)
    assert lanes(result).sums == (0, 0)
    assert lanes(result).rates[0] is None
    assert doubts(result) == []


def test_wired_to_switches_with_no_link_up_is_said() -> None:
    """A GPU that counts switch links while none is active contradicts itself."""
    result = made.with_links(made.h100(4), 1, state=0)
    assert doubts(result) == [(1, Doubt.SILENT)]


def test_names_that_fit_nobody_are_not_believed_where_no_link_names_anyone() -> None:
    """A virtual machine shows its host's addresses: P2P status tells, and nobody is called hidden."""
    result = made.titan()
    for index in range(2):
        result = made.with_links(result, index, remote="000a:00:00.0")
    assert lanes(result).pair == ((0, 2), (2, 0))
    assert doubts(result) == []


def test_no_switch_links_and_no_links_is_a_plain_pcie_card() -> None:
    """Field 147 answers 0 on cards without NVLink; nothing is silent there."""
    assert doubts(made.with_gpu(made.phb(), 0, switch_links=0)) == []


def test_an_unnamed_far_end_beside_a_named_one_is_still_given_to_the_only_peer() -> None:
    """One link names the peer, the other nobody: P2P status tells where the second leads."""
    result = made.titan()
    for index in range(2):
        first = result.gpus[index].links[0]
        split = [replace(first, links=[0]), replace(first, links=[1], remote=Unavailable("Unknown"))]
        result = made.with_gpu(result, index, links=split)
    assert lanes(result).sums == (2, 2)


def test_links_of_a_gpu_with_mig_are_not_looked_at() -> None:
    """With MIG on NVML reports links as down whatever they are."""
    counted = lanes(made.with_gpu(made.h100(4), 1, mig=1))
    assert counted.mig == (1,)
    assert counted.sums[1] == 0
    assert counted.unresolved == ()


def test_a_link_listed_twice_counts_once() -> None:
    """A document that repeats a link number cannot inflate NV#."""
    result = made.h100(2)
    group = result.gpus[0].links[0]
    again = made.with_gpu(result, 0, links=[group, group, replace(group, links=[0, 0, 1, 18])])
    assert lanes(again).sums == (19, 18)


def test_the_slowest_counted_link_gives_the_rate() -> None:
    """Rates of links that do not count are ignored; none at all is None."""
    group = made.titan().gpus[0].links[0]
    mixed = [replace(group, links=[0]), replace(group, links=[1], mbps=20_000)]
    down = LinkGroup(links=[2], state=0, p2p=1, mbps=1)
    assert lanes(made.with_gpu(made.titan(), 0, links=[*mixed, down])).rates == (20_000, 25_781)
    assert lanes(made.with_links(made.titan(), 0, mbps=0)).rates == (None, 25_781)
    assert lanes(made.phb()).rates == (None, None)


def test_bus_ids_are_compared_without_regard_to_case() -> None:
    """NVML prints upper case, sysfs lower."""
    assert lanes(made.with_links(made.titan(), 0, remote="0000:10:00.0".upper())).sums == (2, 2)
    upper = made.with_gpu(made.titan(), 1, pci="0000:1A:00.0")
    assert lanes(made.with_links(upper, 0, remote="0000:1a:00.0")).pair == ((0, 2), (2, 0))


@pytest.mark.parametrize(("capability", "doubtful"), [("3.7", False), ("5.2", False), ("6.0", True)])
def test_gpus_older_than_nvlink_have_no_links_to_doubt(capability: str, doubtful: bool) -> None:
    """A driver that knows no NVLink calls is no riddle on a GPU that never had any."""
    unknown = LinkGroup(links=[0], state=Unavailable("NVML_ERROR_FUNCTION_NOT_FOUND"))
    old = made.with_gpu(made.phb(), 0, compute_capability=capability, links=[unknown])
    assert (doubts(old) != []) is doubtful


def test_an_empty_document_has_no_lanes() -> None:
    """No GPUs, no pairs, no error."""
    assert lanes(Result(probe="health")).pair == ()
