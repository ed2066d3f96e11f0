"""The supervisor of one run: a process of its own that outlives segments.

Who decides on devices is in `allocation.AllocationSource`; how a source is chosen for a
job in `choose_source`.
"""

from __future__ import annotations

from selfsched.elastic.allocation import Allocation, AllocationSource, Device, SegmentEnd

__all__ = ["Allocation", "AllocationSource", "Device", "SegmentEnd"]
