"""What is searched: the values that Hydra's own grammar gives to the keys of a sweep.

    choice(a, b)   a,b   [a, b]       one of these
    range(1, 9, 2)                    one of these, of which neighbours are alike
    interval(0.1, 0.9)                any number between the two; int(interval(1, 9)) a whole one
    tag(log, interval(1e-5, 1e-1))    … each order of magnitude as likely as the next
    tag(log, range(1, 1025))          … of whole numbers
    shuffle(…), sort(…)               the order in which a grid is walked
    glob(v6e-*)                       the options of a config group

A value is the text that stands behind the `=` of an override. Nothing here knows of a searcher.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.errors import ConfigError, Problem

UNREAD = "the value cannot be read"
QUOTE = """quote what holds any of , = : # ' or letters beyond ASCII: "'a, b',c\""""
LOG = "log"  # the one tag that means something


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these texts. `ordered`: the nearer two of them stand, the more alike they are."""

    texts: tuple[str, ...]
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Interval:
    """A number from `low` to `high`, both of them included."""

    low: float
    high: float
    whole: bool = False
    log: bool = False


Domain = Choice | Interval
Space = Mapping[str, Domain]


def size(space: Space) -> float:
    """How many different trials there are; infinite with an interval of fractions."""
    return math.prod(_size(domain) for domain in space.values())


def _size(domain: Domain) -> float:
    match domain:
        case Choice(texts):
            return len(texts)
        case Interval(low, high, whole=True):
            return high - low + 1
    return 1 if domain.low == domain.high else math.inf


def texts(domain: Domain) -> Sequence[str]:
    """All values, in the order of a grid. Raises ValueError for an interval of fractions."""
    match domain:
        case Choice(values):
            return values
        case Interval(low, high, whole=True):
            return [str(number) for number in range(int(low), int(high) + 1)]
    raise ValueError("an interval has no grid")


def ends(domain: Domain) -> Sequence[str]:
    """All of a choice; of an interval the first and the last."""
    if isinstance(domain, Choice):
        return domain.texts
    return [text_of(domain, end) for end in (domain.low, domain.high)]


def number_of(domain: Interval, text: str) -> float | None:
    """The number that `text` is, or None if it does not lie in the interval."""
    try:
        value = int(text) if domain.whole else float(text)
    except ValueError:
        return None
    return value if domain.low <= value <= domain.high else None


def text_of(domain: Interval, value: float) -> str:
    """The shortest text that is read as the same number."""
    inside = min(max(value, domain.low), domain.high)
    return str(round(inside)) if domain.whole else repr(float(inside))


def draw(domain: Domain, rng: random.Random) -> str:
    """Any of the values, each as likely as the next (on the domain's scale)."""
    match domain:
        case Choice(values):
            return rng.choice(values)
        case Interval(low, high, whole=True, log=False):
            return str(rng.randint(int(low), int(high)))
        case Interval(low, high, log=True):
            return text_of(domain, math.exp(rng.uniform(math.log(low), math.log(high))))
    return text_of(domain, rng.uniform(domain.low, domain.high))


def take_apart(
    overrides: Sequence[str], params: Mapping[str, Any], *, seed: int = 0, config_loader: Any = None
) -> tuple[dict[str, Domain], list[str]]:
    """The keys that are searched, and the overrides that all trials share.

    `params` is the block of an experiment file: a text of the grammar, or a list, or one value, by
    key. An override of the same key takes its place. `config_loader` is Hydra's, for `glob`.

    Raises ConfigError with every problem found.
    """
    words = dict(_word(override) for override in [*_as_overrides(params), *overrides])
    space: dict[str, Domain] = {}
    shared, problems = [], []
    for key, override in words.items():
        try:
            domain = _domain(override, seed, config_loader)
        except ValueError as error:
            hint = QUOTE if str(error).startswith(UNREAD) else ""
            problems.append(Problem(str(error), key, override.lstrip("+"), hint))
            continue
        if domain is None:
            shared.append(override)
        else:
            space[key] = domain
    if problems:
        raise ConfigError(problems)
    return space, shared


def _word(override: str) -> tuple[str, str]:
    return override.partition("=")[0].lstrip("+").strip(), override


def _as_overrides(params: Mapping[str, Any]) -> list[str]:
    from launcher.config.overrides import as_hydra

    return as_hydra([f"{key}={_as_text(value)}" for key, value in params.items()])


def _as_text(value: Any) -> str:
    return ",".join(map(_element, value)) if _is_list(value) else _scalar(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)  # OmegaConf's as well


def _element(value: Any) -> str:
    """One of a list's: a list is one value here, and so is a text, whatever is in it."""
    if _is_list(value):
        return f"[{','.join(map(_element, value))}]"
    return _quoted(value) if isinstance(value, str) and not _is_one(value) else _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def _is_one(text: str) -> bool:
    """Whether Hydra reads it as one value, of those that `a,b` is made of."""
    from hydra.errors import HydraException

    from launcher.config.overrides import parsed_by_hydra

    if not text or text != text.strip() or text.endswith("\\"):
        return False
    try:
        value = parsed_by_hydra(f"x={text}").value()
    except HydraException:
        return False
    return not getattr(value, "simple_form", False)


def _quoted(text: str) -> str:
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text=text, quote=Quote.single).with_quotes()


def _domain(override: str, seed: int, config_loader: Any) -> Domain | None:
    """None if there is one value. Raises ValueError."""
    from hydra.errors import HydraException

    from launcher.config.overrides import parsed_by_hydra

    try:
        parsed = parsed_by_hydra(override, config_loader)
        if not parsed.is_sweep_override():
            return None
        if parsed.is_discrete_sweep():
            return _discrete(parsed, seed)
    except HydraException as error:
        raise ValueError(f"{UNREAD}: {str(error).splitlines()[0]}") from error
    return _interval(parsed.value())


def _discrete(parsed: Any, seed: int) -> Domain:
    value = parsed.value()
    shuffled: bool = getattr(value, "shuffle", False)
    tags: set[str] = getattr(value, "tags", set())
    _check_tags(tags)
    if parsed.is_range_sweep() and LOG in tags:
        return _log_range(value)
    if LOG in tags:
        raise ValueError("the tag log is for an interval or a range")
    if shuffled:  # Hydra draws from Python's common generator, which nobody has seeded
        value.shuffle = False
    found = list(dict.fromkeys(parsed.sweep_string_iterator()))
    if not found:
        raise ValueError("there is no value in it")
    if shuffled:
        random.Random(seed).shuffle(found)
    return Choice(tuple(found), ordered=parsed.is_range_sweep() and not shuffled)


def _log_range(value: Any) -> Interval:
    whole = all(isinstance(part, int) for part in (value.start, value.stop, value.step))
    if not whole or value.step != 1:
        raise ValueError("a range with the tag log goes by steps of 1; take an interval")
    return _checked(Interval(value.start, value.stop - 1, whole=True, log=True))


def _interval(value: Any) -> Interval:
    _check_tags(value.tags)
    whole = isinstance(value.start, int) and isinstance(value.end, int)
    return _checked(Interval(value.start, value.end, whole, log=LOG in value.tags))


def _checked(domain: Interval) -> Interval:
    if not (math.isfinite(domain.low) and math.isfinite(domain.high)):
        raise ValueError("both ends must be finite")
    if domain.low > domain.high:
        raise ValueError(f"it begins at {domain.low:g} and ends at {domain.high:g}, which is less")
    if domain.log and domain.low <= 0:
        raise ValueError(f"on a log scale it must begin above 0, not at {domain.low:g}")
    return domain


def _check_tags(tags: set[str]) -> None:
    if unknown := sorted(tags - {LOG}):
        raise ValueError(f"the tag {unknown[0]} means nothing here; there is log")
