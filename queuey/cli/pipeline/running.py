"""What every job on Spark shares: its store, Spark session, progress and exit code."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuey.cli.operations.store_options import ConfiguredStore, on_store, silence_logs
from queuey.model.extras import require
from queuey.storage import bridge
from queuey.terminal import output
from queuey.terminal.commands import name_and_value, with_parameters
from queuey.terminal.output import DryRun, bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from queuey.spark.options import Selection, StoreOptions

MASTER = "local[*,4]"
"""All cores of this machine; a task is tried four times."""
_PANEL = "Which Spark"

Application = Annotated[
    str | None,
    typer.Option(
        "--app",
        help="Application whose queues are used.",
        envvar="QUEUEY_APP",
        show_envvar=False,
        show_default="$QUEUEY_APP, the profile's, or the only one",
        rich_help_panel="Which store",
    ),
]
Master = Annotated[str, typer.Option("--master", help="Master of the Spark cluster.", rich_help_panel=_PANEL)]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", help="Setting of Spark: NAME=VALUE; several may be given.", rich_help_panel=_PANEL),
]

UPDATE_INTERVAL = 0.25


@dataclass(kw_only=True)
class PipelineRun:
    """One run of a job.

    Attributes:
        store_at: The configured store.
        named: The application whose queues are used. If None, the environment names it, else the profile if the store
            has that application, else the store's only application is used.
        master: The master of Spark.
        conf: Settings of Spark.
        dry_run: Whether the run changes nothing.
    """

    store_at: ConfiguredStore
    named: str | None
    master: str
    conf: Mapping[str, str]
    dry_run: bool
    _progress: Callable[[str], None] | None = None

    @property
    def store(self) -> StoreOptions:
        return self._make_store_options(self.application)

    @cached_property
    def application(self) -> str:
        """The application whose queues are used.

        Raises:
            QueueyError: The store cannot be used, does not have the application, or has several and none is named.
        """
        from queuey.spark import open_stores

        named = self.named or None  # The variable may be empty.
        with self.store_at.open() as store:
            if named is None:
                profile = self._read_application_of_profile()
                named = (
                    profile if profile is not None and bridge.run(store.applications.has_application(profile)) else None
                )
            return open_stores.application(store, self._make_store_options(named))

    def _make_store_options(self, application: str | None) -> StoreOptions:
        from queuey.spark.options import StoreOptions

        settings = tuple(sorted(self.store_at.given_settings().items()))
        return StoreOptions(settings=settings, config=None, application=application)

    def _read_application_of_profile(self) -> str | None:
        from queuey.client.credentials.profile import default_path, read_profile
        from queuey.client.errors import ProfileError

        try:
            return read_profile(self.store_at.settings.profile or default_path()).application
        except ProfileError:
            return None

    def report(self, text: str) -> None:
        if self._progress is not None:
            self._progress(text)
        elif not output.is_json_chosen():
            output.print_note(text)

    def report_dry_run(self) -> None:
        if self.dry_run:
            output.print_note("This command changes nothing, so --dry-run has no effect.")

    @contextmanager
    def session(self, queues: Selection | None = None) -> Iterator[SparkSession]:
        """Checks the store, starts Spark, shows the progress of its tasks on a terminal, and stops Spark.

        Args:
            queues: The queues that must exist.

        Raises:
            QueueyError: The store cannot be used, or the body raised it.
            Failed: Spark failed: exit code 2 if the request cannot be fulfilled, 1 otherwise.
        """
        from queuey.pipeline import name_ranges
        from queuey.spark import failures
        from queuey.spark.session import session

        # Mistakes in the store or in names are found before Spark starts.
        store = self.store
        if queues is not None:
            name_ranges.check_selection(store, queues)
        failures.silence_spark_loggers()
        try:
            spark = session(master=self.master, conf=dict(self.conf))
            try:
                with self._show_progress(spark):
                    yield spark
            except BaseException:
                # Report the error of the job, even if Java has ended and Spark cannot be stopped.
                with suppress(Exception):
                    spark.stop()
                raise
            spark.stop()
        except Exception as error:
            failure = failures.explain(error)
            if failure is None:
                raise
            raise output.Failed(failure.text, output.WRONG_USAGE if failure.usage else 1) from error

    @contextmanager
    def _show_progress(self, spark: SparkSession) -> Iterator[None]:
        if output.is_json_chosen() or not sys.stderr.isatty():
            yield
            return
        with show_stage_progress(spark) as say:
            self._progress = say
            try:
                yield
            finally:
                self._progress = None


def on_spark(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of all jobs to a command, whose first parameter is a :class:`PipelineRun`.

    The options are every setting of a store, ``--config``, ``--app``, ``--master``, ``--conf``, ``--json`` and
    ``--dry-run``. Before the command begins, it is checked that Spark is installed and that an embedded store exists.
    """
    first, *own = inspect.signature(command, eval_str=True).parameters.values()

    def run(
        store_at: ConfiguredStore,
        app: Application = None,
        master: Master = MASTER,
        conf: Conf = None,
        dry_run: DryRun = False,
        **values: Any,  # noqa: ANN401 - the options of any command
    ) -> None:
        pairs = dict(name_and_value(text, "NAME=VALUE", "--conf", empty=True) for text in conf or [])
        require("spark", "the pipeline", partial(output.Failed, exit_code=output.WRONG_USAGE))
        store_at.require_existing()
        silence_logs()
        started = PipelineRun(store_at=store_at, named=app, master=master, conf=pairs, dry_run=dry_run)
        command(**{first.name: started}, **values)

    store_at, *shared, _ = inspect.signature(run, eval_str=True).parameters.values()
    return on_store(with_parameters(run, command, [store_at, *own, *shared]))


@contextmanager
def show_stage_progress(spark: SparkSession, *, every: float = UPDATE_INTERVAL) -> Iterator[Callable[[str], None]]:
    """Shows a progress bar of the tasks in running stages; yields a function that shows a text beside it.

    A thread polls Spark's status tracker.

    Args:
        spark: The session whose tasks are shown.
        every: Seconds between two updates.
    """
    tracker, ended, said = spark.sparkContext.statusTracker(), Event(), ""

    def say(text: str) -> None:
        nonlocal said
        said = text

    def follow() -> None:
        while not ended.wait(every):
            try:
                stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            except Exception:  # noqa: BLE001 - Spark has ended; the job itself reports why
                return
            total = sum(stage.numTasks for stage in stages if stage is not None)
            done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            move(said, done, total or None)

    thread = Thread(target=follow, name="progress", daemon=True)
    with bar() as move:
        thread.start()
        try:
            yield say
        finally:
            ended.set()
            thread.join()
