"""How a cluster is written, and where devices lie on it."""

from __future__ import annotations

import pytest

from selfsched.errors import Refused
from selfsched_simulator.cluster import one_node, parse_cluster


def test_nodes_and_models() -> None:
    cluster = parse_cluster("2x4:aws, 8:v100")
    assert [(node.name, node.model, node.devices) for node in cluster.nodes] == [
        ("node-0", "aws", 4),
        ("node-1", "aws", 4),
        ("node-2", "v100", 8),
    ]
    assert cluster.devices == 16
    assert cluster.models == {"aws": 8, "v100": 8}
    assert parse_cluster("3").nodes[0].model == "gpu"


def test_a_layout_counts_devices_node_by_node() -> None:
    cluster = parse_cluster("2x2:a,1:b")
    devices = [device for node in cluster.nodes for device in node.device_ids()]
    assert len(set(devices)) == 5
    assert cluster.layout(devices[1:4]) == (("a", 1), ("a", 2))
    assert cluster.layout([devices[4], devices[0]]) == (("a", 1), ("b", 1))
    assert cluster.layout([]) == ()


def test_on_how_few_nodes_devices_fit() -> None:
    cluster = parse_cluster("2x4:a,1x8:b")
    assert cluster.fewest_nodes(8) == 1
    assert cluster.fewest_nodes(9) == 2
    assert cluster.fewest_nodes(5, "a") == 2
    assert cluster.fewest_nodes(9, "a") is None


def test_more_devices_than_one_report_lists_are_several_nodes() -> None:
    cluster = one_node(2500)
    assert [node.devices for node in cluster.nodes] == [1024, 1024, 452]
    assert len({device for node in cluster.nodes for device in node.device_ids()}) == 2500


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read at ''"),
        ("4x:aws", "cannot be read"),
        ("4x4:a b", "cannot be read"),
        ("-1:a", "cannot be read"),
        ("4:a,,3:b", "cannot be read at ''"),
        ("0x4:a", "without devices"),
        ("4x0:a", "without devices"),
        ("1x2000:a", "at most 1024 devices"),
        ("100x1000:a", "at most 65536"),
    ],
)
def test_what_cannot_be_read_is_refused_with_an_example(text: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        parse_cluster(text)
