"""The command line: `python -m launcher [VERB] [Hydra overrides or names] [flags]`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

USAGE = """\
usage: python -m launcher [VERB] [Hydra overrides or a run's name] [flags]

  run (default)  provision, run, supervise, tear down     launcher cluster=v6e-16 workload=basic
  plan [--json]  print what run would do; touch nothing; --for 12h (its cost), --show-files
  rehearse       the same run on the emulator under scripted faults: did it resume, what was lost;
                 --only NAME,…  --faults FILE,…  --random N --seed S  --tolerance X  --strict
  up, down NAME  slices and cluster without a job; down --all takes down everything of yours
  status [NAME]  phase, attempt, last step; --json
  logs NAME [-f] output of all processes; of a sweep, NAME [TRIAL]
  report NAME    what became of a run or a rehearsal, and where its time went; --html FILE
  cancel NAME    stop a run and delete its slices
  gc [--yes]     find what dead runs left here and (provider=…) there; --yes deletes it
  doctor         check this machine, and the project that the overrides name; --json
  coordinator create-service-account   the account of the coordinator; --name, --dry-run

Overrides:  cluster=v6e-16  mode=jax  workload=basic  workload.script=train.py  workload.args.lr=0.1
            name=my-run  keep=true  provider=google provider.project=my-project
Sweeps:     -m workload.args.lr=0.1,0.2  sweep.per_trial='{chips: 2}'  (docs/sweeps.md)
Hydra:      -m  --cfg job  --info  --config-dir DIR  --shell-completion (tab completion)
Also:       --help  --version
Exit codes: 0 succeeded, 1 fault of launcher, 2 configuration, 3 provisioning, 4 cluster,
            5 workload failed, 6 preemption budget spent, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Never returns: leaves with the exit code of the design's table."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it reports orderly hang-ups on stderr
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        from launcher.pipes import until_unread
        from launcher.verbs import exit_code

        code = until_unread(lambda: exit_code(lambda: dispatch(words)))
    except KeyboardInterrupt:  # nothing has begun: modules are still being loaded
        code = 130
    sys.exit(code)


def dispatch(words: list[str]) -> int:
    from launcher.verbs import VERBS, find, take_apart

    verb = words.pop(0) if words and words[0] in VERBS else "run"
    if {"-h", "--help"} & set(words):
        print(USAGE, end="")
        return 0
    if words == ["--version"]:
        from importlib.metadata import version

        print(f"launcher {version('launcher')}")
        return 0
    arguments = take_apart(verb, words)
    if arguments.hydra:
        from launcher.passthrough import through_hydra

        return through_hydra(arguments, find(verb))
    return find(verb)(arguments)


if __name__ == "__main__":
    main()
