"""What holds for every test: 8 CPU devices, no silent rank promotion, no time limits."""

import os
import sys
import textwrap

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of a test's time is compilation, and small models gain nothing from optimised code. XLA's
# newer emitters of fusions take three times as long for a training step as its older ones, and code
# in parts, for as many threads, a sixth longer than code in one.
FAST_COMPILATION = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
os.environ.setdefault("XLA_FLAGS", " ".join(FAST_COMPILATION))

import hypothesis  # noqa: E402
import jax  # noqa: E402  (reads JAX_PLATFORMS when it is imported)
import pytest  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

# A collective of CPU devices blocks a thread of each until all have come, and XLA starts as many
# threads as devices: where two collectives need nothing of each other, some devices may begin with
# one, some with the other, and wait until XLA ends the process. Runs of one device, in processes of
# their own, are slower with more threads.
with pytest.MonkeyPatch.context() as patch:
    patch.setenv("PJRT_NPROC", "64")
    jax.devices()  # starts them

# The first example of a property often compiles, and a busy machine is no failure.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """A module's programs go with it: those of the whole suite are gigabytes in each process."""
    yield
    jax.clear_caches()


@pytest.fixture
def verifier(tmp_path, monkeypatch):
    """Makes a module `judge` of this text, which the workers can import too."""

    def make(text):
        (tmp_path / "judge.py").write_text(textwrap.dedent(text))
        monkeypatch.syspath_prepend(tmp_path)

    yield make
    monkeypatch.undo()
    sys.modules.pop("judge", None)
