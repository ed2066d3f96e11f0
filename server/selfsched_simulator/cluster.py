"""The simulated cluster: its nodes, and where a job's devices lie on them.

`--gpus 32` is one node without a model; `--cluster 16x4:aws` sixteen nodes of four devices each
of the model `aws`; `--cluster 8:v100,16:p100` a node of eight and one of sixteen.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from selfsched.errors import Refused
from selfsched.protocol import DeviceReport

MOST_DEVICES = 65_536
# What one report of a node may list (`protocol.NodeReport`).
_MOST_ON_A_NODE = 1024
_PART = re.compile(
    r"^(?:(?P<nodes>\d{1,6})x)?(?P<devices>\d{1,6})(?::(?P<model>[A-Za-z0-9][A-Za-z0-9._-]{0,63}))?$"
)
ONE_MODEL = "gpu"
"""Where nothing is said of models."""

Layout = tuple[tuple[str, int], ...]
"""A job's devices, node by node in the nodes' order: (model, how many)."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One machine."""

    name: str
    model: str
    devices: int

    def device_ids(self) -> list[str]:
        """Ids of its devices, in order."""
        return [f"{self.name}.{index:0{_digits(self.devices)}}" for index in range(self.devices)]

    def reports(self, state: str) -> tuple[DeviceReport, ...]:
        """What its agent says of each device that is in a state."""
        return tuple(
            DeviceReport(id=device, index=index, model=self.model, kind="gpu", state=state)  # type: ignore[arg-type]
            for index, device in enumerate(self.device_ids())
        )


@dataclass(frozen=True)
class Cluster:
    """All nodes."""

    nodes: tuple[NodeSpec, ...]
    _places: Mapping[str, tuple[int, str]] = field(init=False, repr=False, compare=False)
    """By device: (number of its node, model)."""

    def __post_init__(self) -> None:
        places = {d: (at, node.model) for at, node in enumerate(self.nodes) for d in node.device_ids()}
        object.__setattr__(self, "_places", places)

    @cached_property
    def devices(self) -> int:
        """How many devices it has."""
        return sum(node.devices for node in self.nodes)

    @cached_property
    def models(self) -> dict[str, int]:
        """Devices of each model, in the order of the nodes."""
        found: Counter[str] = Counter()
        for node in self.nodes:
            found[node.model] += node.devices
        return dict(found)

    def node_of(self, device: str) -> NodeSpec:
        """The node a device is on."""
        return self.nodes[self._places[device][0]]

    def layout(self, devices: Iterable[str]) -> Layout:
        """Where devices lie."""
        counts = Counter(self._places[device] for device in devices)
        return tuple((model, counts[at, model]) for at, model in sorted(counts))

    def fewest_nodes(self, devices: int, model: str | None = None) -> int | None:
        """On how few nodes (of one model) so many devices lie; None: it has not so many."""
        sizes = sorted((n.devices for n in self.nodes if model in (None, n.model)), reverse=True)
        for count, size in enumerate(sizes, start=1):
            devices -= size
            if devices <= 0:
                return count
        return None


def one_node(devices: int) -> Cluster:
    """So many devices side by side, without any constraint of placement.

    More than one report can list are several nodes.
    """
    full, rest = divmod(devices, _MOST_ON_A_NODE)
    sizes = [_MOST_ON_A_NODE] * full + ([rest] if rest else [])
    if len(sizes) == 1:
        return Cluster((NodeSpec("node", ONE_MODEL, devices),))
    return Cluster(tuple(NodeSpec(f"node-{at:02}", ONE_MODEL, size) for at, size in enumerate(sizes)))


def parse_cluster(text: str) -> Cluster:
    """Read `[NODESx]DEVICES[:MODEL]`, several with commas.

    Raises:
        Refused: it cannot be read, or is empty or too large.
    """
    parts: list[tuple[int, int, str]] = []
    for part in text.split(","):
        found = _PART.match(part.strip())
        if found is None:
            raise Refused(
                f"--cluster {text[:80]!r} cannot be read at {part[:40]!r}: write NODESxDEVICES:MODEL, as"
                " 16x4:aws, or DEVICES:MODEL for one node, several with commas"
            )
        nodes, devices = int(found["nodes"] or 1), int(found["devices"])
        if not nodes or not devices:
            raise Refused(f"--cluster {text[:80]!r} has a part without devices: {part[:40]!r}")
        if devices > _MOST_ON_A_NODE:
            raise Refused(f"--cluster: a node has at most {_MOST_ON_A_NODE} devices, {part[:40]!r} has more")
        parts.append((nodes, devices, found["model"] or ONE_MODEL))
    total = sum(nodes * devices for nodes, devices, _ in parts)
    if total > MOST_DEVICES:
        raise Refused(f"--cluster {text[:80]!r} has {total} devices, at most {MOST_DEVICES} are simulated")
    digits = _digits(sum(nodes for nodes, _, _ in parts))
    specs: list[NodeSpec] = []
    for nodes, devices, model in parts:
        specs += [NodeSpec(f"node-{len(specs) + at:0{digits}}", model, devices) for at in range(nodes)]
    return Cluster(tuple(specs))


def _digits(count: int) -> int:
    return len(str(max(0, count - 1)))
