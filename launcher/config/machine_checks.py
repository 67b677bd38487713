"""What a JSON Schema cannot say about `cluster`: the TPU VMs, and the machine of the Ray head."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher.config.draft import Check, Draft
from launcher.config.offer_checks import ZONE, all_zones, known_types
from launcher.config.origins import Key
from launcher.config.resolve import takes_environment
from launcher.config.values import as_list
from launcher.errors import Problem

# https://cloud.google.com/compute/docs/labeling-resources#requirements
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_OUR_LABELS = "launcher-"
MOST_LABELS = 60
# https://cloud.google.com/compute/docs/naming-resources; tags are of the same form
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME_RULE = "a-z, then a-z, 0-9 and -, at most 63"
_EMAIL = re.compile(r"[a-z0-9][-a-z0-9.]*@[-a-z0-9.]+\.[a-z]+")
_SCOPE = re.compile(r"https://[-a-z0-9.]+/[A-Za-z0-9._/-]*")
_SCOPES = "https://www.googleapis.com/auth/"
_DISK = re.compile(
    r"projects/[a-z][-a-z0-9.:]*/(zones/(?P<zone>[-a-z0-9]+)|regions/[-a-z0-9]+)/disks/[-a-z0-9]+"
)
_MACHINE_TYPE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+")
_IMAGE = re.compile(r"projects/[a-z][-a-z0-9.:]*/global/images/(family/)?[-a-z0-9]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What the agent on a host takes away, since it belongs to Ray, the image, or the launcher.
_OWNED = ("LAUNCHER_", "RAY_", "TPU_", "MEGASCALE_")
SCRIPT_BYTES = 256 * 1024  # of one metadata value
# https://cloud.google.com/compute/docs/metadata/setting-custom-metadata#limitations


def _labels(draft: Draft) -> Iterator[Problem]:
    if (count := len(draft["cluster.labels"])) > MOST_LABELS:
        message = f"{count} labels; a resource has at most 64, four of them the launcher's"
        yield draft.origins.problem(message, ("cluster", "labels"), f"leave {MOST_LABELS} of them")
    for name, value in draft["cluster.labels"].items():
        key = ("cluster", "labels", name)
        if not (_LABEL_KEY.fullmatch(name) and _LABEL_VALUE.fullmatch(value or "")):
            hint = "key and value are a-z, 0-9, - and _, at most 63; a key begins with a letter"
            yield draft.origins.problem("not a valid label", key, hint)
        elif name.startswith(_OUR_LABELS):
            hint = f"choose a key that does not begin with {_OUR_LABELS}"
            yield draft.origins.problem("the launcher sets labels of this kind", key, hint)


def _tags(draft: Draft) -> Iterator[Problem]:
    for index, tag in enumerate(draft["cluster.tags"]):
        if not _NAME.fullmatch(tag):
            key = ("cluster", "tags", str(index))
            yield draft.origins.problem("not a valid network tag", key, _NAME_RULE)


def _account(draft: Draft) -> Iterator[Problem]:
    yield from _email_problems(draft, ("cluster", "service_account"))


def _email_problems(draft: Draft, key: Key) -> Iterator[Problem]:
    given = draft[".".join(key)]
    if given is not None and not _EMAIL.fullmatch(given):
        hint = "such as trainer@my-project.iam.gserviceaccount.com"
        yield draft.origins.problem("not the e-mail of a service account", key, hint)


def _scopes(draft: Draft) -> Iterator[Problem]:
    for index, scope in enumerate(draft["cluster.scopes"]):
        key = ("cluster", "scopes", str(index))
        if not _SCOPE.fullmatch(scope):
            short = re.fullmatch(r"[a-z._-]+", scope) and not takes_environment(draft.written, key)
            hint = f"such as {_SCOPES}{scope if short else 'cloud-platform'}"
            yield draft.origins.problem("must be a URL", key, hint)


def _disks(draft: Draft) -> Iterator[Problem]:
    zones = all_zones(draft)
    sources = [disk["source"] for disk in draft["cluster.data_disks"]]
    for index, disk in enumerate(draft["cluster.data_disks"]):
        key = ("cluster", "data_disks", str(index), "source")
        found = _DISK.fullmatch(disk["source"])
        if not found:
            hint = "projects/PROJECT/zones/ZONE/disks/DISK"
            yield draft.origins.problem("not the name of a disk", key, hint)
        elif disk["source"] in sources[:index]:
            yield draft.origins.problem("the same disk twice", key, "leave one of them")
        elif found["zone"] and zones and found["zone"] not in zones:
            hint = "a disk can be attached in its own zone alone: set cluster.zone"
            yield draft.origins.problem("no slice is asked for in its zone", key, hint)


def _shared_disks(draft: Draft) -> Iterator[Problem]:
    """https://cloud.google.com/tpu/docs/attach-durable-block-storage: several VMs only read."""
    slices = max(as_list(draft["mode.slices"]))
    several = slices > 1 or any(kind.hosts > 1 for kind in known_types(draft))
    for index, disk in enumerate(draft["cluster.data_disks"]):
        if several and disk.get("mode", "READ_WRITE") == "READ_WRITE":
            key = ("cluster", "data_disks", str(index), "mode")
            hint = "give mode: READ_ONLY"
            yield draft.origins.problem("several TPU VMs cannot write to one disk", key, hint)


def _startup(draft: Draft) -> Iterator[Problem]:
    for index, line in enumerate(draft["cluster.startup"]):
        key = ("cluster", "startup", str(index))
        if takes_environment(draft.written, key):
            yield _in_metadata(draft, key)
        elif any(letter in line for letter in "\0\n\r") or not _is_utf8(line):
            hint = "one line each, as a list"
            yield draft.origins.problem("must be one line of text", key, hint)


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _env(draft: Draft) -> Iterator[Problem]:
    for name in draft["cluster.env"]:
        key = ("cluster", "env", name)
        if not _VARIABLE.fullmatch(name):
            yield draft.origins.problem("not a valid name of a variable", key)
        elif name.startswith(_OWNED):
            message = f"variables of {', '.join(_OWNED)} do not reach a process from here"
            yield draft.origins.problem(message, key, "workload.env takes those of TPU_")
        elif takes_environment(draft.written, key):
            yield _in_metadata(draft, key)


def _in_metadata(draft: Draft, key: Key) -> Problem:
    hint = "give it to the program under workload.env, which is never stored"
    message = "takes a variable's value into the metadata of the TPU VMs, which others can read"
    return draft.origins.problem(message, key, hint)


def _script_size(draft: Draft) -> Iterator[Problem]:
    from launcher.startup import host_config, startup_script

    env = {name: value for name, value in draft["cluster.env"].items() if value is not None}
    requirements = [*draft["mode.requirements"], *draft["workload.requirements"]]
    config = host_config(4, 0.0, requirements, "3.13.13")
    try:
        script = startup_script(config, requirements, before=draft["cluster.startup"], env=env)
        size = len(script.encode())
    except UnicodeEncodeError:
        return  # told by the check of the lines
    if size >= SCRIPT_BYTES:
        message = f"the startup script would have {size} bytes; the limit is {SCRIPT_BYTES}"
        hint = "put the work into the program, or into an image or a bucket of yours"
        yield draft.origins.problem(message, ("cluster", "startup"), hint)


def _coordinator(draft: Draft) -> Iterator[Problem]:
    given, key = draft["cluster.coordinator"], ("cluster", "coordinator")
    port = re.search(r":([0-9]+)/?$", given)
    if given == "host0" and max(as_list(draft["mode.slices"])) > 1:
        hint = "vm, or here"
        message = "the head's address is not known before the first slice is up"
        yield draft.origins.problem(f"with several slices {message}", key, hint)
    elif port and not 0 < int(port[1]) < 65536:
        yield draft.origins.problem("no such port", key, "1 to 65535; the dashboard's is 8265")


def _vm(draft: Draft) -> Iterator[Problem]:
    for name, form, message, hint in _VM_FORMS:
        given = draft[f"cluster.vm.{name}"]
        if given is not None and not form.fullmatch(given):
            yield draft.origins.problem(message, ("cluster", "vm", name), hint)
    yield from _email_problems(draft, ("cluster", "vm", "service_account"))


_VM_FORMS = (
    ("name", _NAME, "not a valid name of a VM", _NAME_RULE),
    ("zone", ZONE, "must be a zone such as us-east5-b", ""),
    ("machine_type", _MACHINE_TYPE, "not a machine type", "such as e2-standard-4"),
    (
        "image",
        _IMAGE,
        "not the name of an image",
        "such as projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts",
    ),
)
_ASKED = ("cluster.accelerator_type", "cluster.zone", "cluster.data_disks")
CHECKS: tuple[tuple[tuple[str, ...], Check], ...] = (
    (("cluster.labels",), _labels),
    (("cluster.tags",), _tags),
    (("cluster.service_account",), _account),
    (("cluster.scopes",), _scopes),
    (_ASKED, _disks),
    ((*_ASKED, "mode.slices"), _shared_disks),
    (("cluster.startup",), _startup),
    (("cluster.env",), _env),
    (
        ("cluster.startup", "cluster.env", "mode.requirements", "workload.requirements"),
        _script_size,
    ),
    (("cluster.coordinator", "mode.slices"), _coordinator),
    (("cluster.vm",), _vm),
)
