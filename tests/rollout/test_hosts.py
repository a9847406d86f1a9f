"""Several hosts: each samples on its own devices and verifies its own rollouts."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

HOST = """
import json, sys
import jax

jax.config.update("jax_num_cpu_devices", 2)
count, number, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if count > 1:
    jax.distributed.initialize(address, count, number)

from jaxrl_vr.data.prompts import Prompt
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import init
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.rollout.collect import collect
from jaxrl_vr.sampler.engine import SlotEngine
from jaxrl_vr.sampler.sizes import EngineConfig
from jaxrl_vr.sharding import SAMPLE_RULES, MeshConfig, make_mesh
from jaxrl_vr.types import Example, Sampling
from jaxrl_vr.verifiers.pool import Pool
from jaxrl_vr.verifiers.pool_config import PoolConfig

if __name__ == "__main__":
    assert (jax.process_count(), len(jax.local_devices())) == (count, 2)
    mesh = make_mesh(MeshConfig(), jax.local_devices())
    sizes = dict(vocab_size=26, width=16, layers=1, heads=4, kv_heads=2, head_dim=4, ffn=24)
    model = Transformer(Architecture(**sizes, max_length=64))
    params = init(model.declare(), jax.random.key(0), SAMPLE_RULES, mesh)
    engine = SlotEngine(model, params, EngineConfig(slots=4, steps_per_call=3), mesh)
    prompts = [
        Prompt(
            Example(str(i), "?", "b", {"type": "regex", "pattern": "b"}),
            (1 + i, 2),
        )
        for i in range(6)
    ][number::count]
    with Pool(PoolConfig(workers=1)) as pool:
        groups = collect(
            engine, pool, prompts, 3, Sampling(9 + 8 * number), key=(0, 0),
            decode=lambda ids: "".join(chr(97 + i) for i in ids),
        )
    print(json.dumps({
        g.example.id: [[r.token_ids[:9], r.score.verdict, len(r.token_ids)] for r in g.rollouts]
        for g in groups
    }))
"""


def run(tmp_path, count):
    """What each of so many hosts collected."""
    (tmp_path / "host.py").write_text(HOST)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    hosts = [
        subprocess.Popen(
            [sys.executable, tmp_path / "host.py", str(count), str(number), address],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    found = [host.communicate() for host in hosts]
    assert all(host.returncode == 0 for host in hosts), found
    return [json.loads(out.splitlines()[-1]) for out, _ in found]


def test_each_host_samples_and_verifies_its_own_rollouts(tmp_path):
    (alone,) = run(tmp_path, 1)
    first, second = run(tmp_path, 2)
    assert (list(first), list(second)) == (["0", "2", "4"], ["1", "3", "5"])
    # The same tokens as on one host, and decoding to other lengths holds nobody up.
    for host, length in ((first, 9), (second, 17)):
        for id, rollouts in host.items():
            assert [tokens for tokens, _, _ in rollouts] == [t for t, _, _ in alone[id]]
            assert {count for _, _, count in rollouts} == {length}
    verdicts = {verdict for host in (first, second) for rs in host.values() for _, verdict, _ in rs}
    assert verdicts == {"right", "wrong"}
    assert [v for _, v, _ in first["0"]] == [v for _, v, _ in alone["0"]]
