"""What a user should know about a configuration that is not wrong."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.accelerators import all_types, lookup
from launcher.config.draft import Draft
from launcher.config.framework_checks import source_of
from launcher.config.target import find_target
from launcher.config.values import as_list
from launcher.errors import Problem
from launcher.provisioning.capacity import CURRENT

# Versions of another generation with which programs are said to see the chips all the same.
_WORKS = frozenset({("v5e", "v2-alpha-tpuv5"), ("v5p", "tpu-ubuntu2204-base")})
# pytorch/xla#8295 for v5e; dstackai/dstack gives v5p this version.

# What tells the processes of a host apart, each of which has one chip.
PER_PROCESS = (
    *("RANK", "LOCAL_RANK", "PJRT_LOCAL_PROCESS_RANK"),
    *("TPU_VISIBLE_CHIPS", "CLOUD_TPU_TASK_ID", "TPU_PROCESS_PORT"),
)


def notes(draft: Draft) -> Iterator[str]:
    """Each a sentence."""
    yield from _old_names(draft)
    yield from _runtime_version(draft)
    yield from _no_way_out(draft)
    yield from _one_size(draft)
    yield from _without_framework(draft)
    yield from _same_for_all(draft)
    yield from _xla_on_cpus(draft)


def _old_names(draft: Draft) -> Iterator[str]:
    for name in as_list(draft["cluster.capacity"]):
        if name in CURRENT:
            yield f"cluster.capacity: {name} is the old name of {CURRENT[name]}, which is asked for"


def _runtime_version(draft: Draft) -> Iterator[str]:
    """A version of another generation boots, and its programs see no chips (dstack#2148)."""
    given, framework = draft["cluster.runtime_version"], draft["mode.framework"]
    accelerators = [lookup(name) for name in as_list(draft["cluster.accelerator_type"])]
    for generation in dict.fromkeys(each.generation for each in accelerators if given):
        made_for = _generations_of(given, framework)
        if made_for and generation not in made_for and (generation, given) not in _WORKS:
            own = next(each for each in accelerators if each.generation == generation)
            known = own.runtime_version(framework)
            yield (
                f"cluster.runtime_version: {given} is made for {', '.join(made_for)};"
                f" on {generation} programs may see no chips"
                f"{f', and {known} is known to work' if known else ''}"
            )


def _generations_of(runtime_version: str, framework: str) -> list[str]:
    """The generations whose own version this is; none for a version that is not in the table."""
    types = map(lookup, all_types())
    named = (each for each in types if each.runtime_version(framework) == runtime_version)
    return list(dict.fromkeys(each.generation for each in named))


def _no_way_out(draft: Draft) -> Iterator[str]:
    """https://cloud.google.com/vpc/docs/private-google-access reaches Google's APIs alone."""
    if draft["provider.kind"] == "google" and not draft["cluster.external_ips"]:
        yield (
            "cluster.external_ips: without external addresses the TPU VMs fetch Ray and other"
            " packages through Cloud NAT, and read buckets through Private Google Access:"
            " the subnetwork needs both"
        )


def _one_size(draft: Draft) -> Iterator[str]:
    """Intervals of an elastic run, given to one whose size does not change."""
    if len(set(as_list(draft["mode.slices"]))) > 1:
        return
    for name in ("probe_interval", "resize_interval"):
        if not draft.is_shipped(("mode", name)):
            yield f"mode.{name}: of no use unless mode.slices is a list of sizes, such as [1, 2]"


def _without_framework(draft: Draft) -> Iterator[str]:
    """Such as mode=multislice, which is one of JAX, with another framework."""
    from packaging.requirements import Requirement

    framework, listed = draft["mode.framework"], draft["mode.requirements"]
    if not any(Requirement(text).name.replace("-", "_") == framework for text in listed):
        yield (
            f"mode.requirements: none of them is {framework}, which a program of this mode imports;"
            f" mode={framework} has it, and takes mode.slices and mode.processes"
        )


def _same_for_all(draft: Draft) -> Iterator[str]:
    """A rank or chip under workload.env, as a script for one process has it: processes collide."""
    if draft["mode.processes"] == "chip":
        for name in PER_PROCESS:
            if name in draft["workload.env"]:
                yield f"workload.env.{name}: all processes get this one value, none its own"


def _xla_on_cpus(draft: Draft) -> Iterator[str]:
    """With `xla://` each process of CPU devices takes itself for the first, and opens its port."""
    types = as_list(draft["cluster.accelerator_type"])
    target = find_target(draft)
    if (
        isinstance(target, Problem)
        or (draft["provider.kind"], draft["mode.processes"]) != ("local", "chip")
        or all(lookup(name).chips == 1 for name in types)
        or b"xla://" not in source_of(target)
    ):
        return
    shown = draft.show(target.key, target.words[0].rpartition("/")[2])
    yield (
        f"workload.{target.kind}: {shown} joins its processes by xla://, which does not work on the"
        " emulator (EADDRINUSE): workloads/xla_group.py, beside it, takes gloo there"
    )
