"""Which backend attends the cache, and the sizes that follow from it."""

import dataclasses

import pytest

from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sampler.sizes import EngineConfig, cache_sizes, check_memory

ARCH = dict(vocab_size=32, width=16, layers=2, heads=4, kv_heads=2, ffn=24)


@dataclasses.dataclass(frozen=True)
class Device:
    """All that sizes ask of a device."""

    platform: str
    compute_capability: str = ""
    device_kind: str = "a device"


@dataclasses.dataclass(frozen=True)
class Devices:
    """A mesh of one device that is not here."""

    devices: object
    shape = {"data": 1, "fsdp": 1, "context": 1, "tensor": 1, "expert": 1}
    axis_names = tuple(shape)


def sizes(platform, head_dim=128, capability="", dtype="bfloat16", **config):
    model = Transformer(Architecture(**ARCH, head_dim=head_dim), dtype)
    mesh = Devices(DeviceArray(Device(platform, capability)))
    return cache_sizes(model, EngineConfig(cache_tokens=4096, **config), mesh)


class DeviceArray(list):
    """As numpy has the devices of a mesh."""

    def __init__(self, device):
        super().__init__([device])
        self.flat, self.size = self, 1


@pytest.mark.parametrize(
    "platform, head_dim, attention, has_kernel, page_tokens",
    [
        ("cpu", 128, "auto", False, 64),
        ("cpu", 4, "pallas", True, 128),
        ("tpu", 128, "auto", True, 128),
        ("tpu", 64, "auto", False, 128),
        ("tpu", 128, "xla", False, 128),
        ("gpu", 128, "auto", False, 128),
    ],
)
def test_the_platform_chooses_and_the_config_overrides(
    platform, head_dim, attention, has_kernel, page_tokens
):
    found = sizes(platform, head_dim, attention=attention)
    assert (found.item_pages is not None) == has_kernel
    assert found.page_tokens == page_tokens
    assert found.keys_across == (platform == "cpu" and not has_kernel)


@pytest.mark.parametrize(
    "platform, capability, dtype, attention, chunk_attention",
    [
        ("gpu", "9.0", "bfloat16", "auto", "cudnn"),
        ("gpu", "9.0", "bfloat16", "cudnn", "cudnn"),
        ("gpu", "9.0", "bfloat16", "xla", "xla"),
        ("gpu", "9.0", "float32", "auto", "xla"),
        ("gpu", "8.0", "bfloat16", "auto", "xla"),
        ("gpu", "gfx942", "bfloat16", "auto", "xla"),
        ("tpu", "", "bfloat16", "auto", "splash"),
        ("tpu", "", "bfloat16", "xla", "xla"),
        ("cpu", "", "bfloat16", "auto", "xla"),
        ("cpu", "", "bfloat16", "pallas", "splash"),
    ],
)
def test_who_attends_a_prefill(platform, capability, dtype, attention, chunk_attention):
    found = sizes(platform, capability=capability, dtype=dtype, attention=attention)
    assert found.chunk_attention == chunk_attention


def test_cudnn_where_it_cannot_run_is_refused():
    says = 'engine.attention = "cudnn": cuDNN wants an NVIDIA GPU of Hopper .* use "auto" or "xla"'
    with pytest.raises(ValueError, match=says):
        sizes("gpu", capability="8.0", attention="cudnn")


@pytest.mark.parametrize("platform, head_dim", [("gpu", 128), ("tpu", 64)])
def test_kernels_where_there_are_none_are_refused(platform, head_dim):
    with pytest.raises(ValueError, match=f'"pallas" on {platform} with heads of {head_dim}'):
        sizes(platform, head_dim, attention="pallas")


def test_pages_that_split_a_register_are_refused():
    with pytest.raises(ValueError, match="page_tokens = 24: the kernel wants a multiple of 16"):
        sizes("tpu", page_tokens=24)


def test_an_items_pages_follow_their_bytes():
    # 2 x 2 heads x C tokens x Q x 2 bytes a page, of 2 MiB, and 8 at most
    assert sizes("tpu").item_pages == 8
    assert sizes("tpu", page_tokens=1024).item_pages == 2
    assert sizes("tpu", page_tokens=4096).item_pages == 1


def test_a_cache_beyond_the_memory_is_refused(monkeypatch, one_device):
    monkeypatch.setattr("jaxrl_vr.sampler.sizes.device_memory", lambda _: 10**6)
    model = Transformer(Architecture(**ARCH, head_dim=4))
    # keys and values of 2 layers x 2 heads x 4 numbers in float32: 128 bytes a token
    check_memory(model, EngineConfig(cache_tokens=7812), one_device)
    says = r"engine.cache_tokens = 8000 takes 0.00102 GB of a device's 0.001; lower it \(7812 "
    with pytest.raises(ValueError, match=says):
        check_memory(model, EngineConfig(cache_tokens=8000), one_device)
