"""Config models and the way from TOML files and `a.b=value` to them and back.

`load` merges files and overrides and checks them against a model, `parse` checks one part; `dump`
writes a resolved config; `difference` compares two. Not here: any option. Those are models beside
the code that reads them.
"""

from jaxrl_vr.config.compare import difference
from jaxrl_vr.config.errors import ConfigError
from jaxrl_vr.config.loading import load, parse
from jaxrl_vr.config.model import Config, LocalPath
from jaxrl_vr.config.toml import dump

__all__ = ["Config", "ConfigError", "LocalPath", "difference", "dump", "load", "parse"]
