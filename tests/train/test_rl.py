"""What the RL stage refuses to train on."""

import numpy as np
import pytest

from jaxrl_vr.losses import group_center
from jaxrl_vr.train.rl import check_finite


def test_advantages_that_overflow_are_refused():
    valid = np.ones((1, 4), bool)
    bounded = np.array([[1e6, 1e6, -1e6, 0.0]], np.float32)
    check_finite("here", bounded, np.asarray(group_center(bounded, valid)))
    reward = np.array([[3e38, 3e38, -3e38, 0.0]], np.float32)
    message = r"grpo step 3: advantages are not finite, from rewards between -3e\+38 and 3e\+38"
    with pytest.raises(ValueError, match=message):
        check_finite("grpo step 3", reward, np.asarray(group_center(reward, valid)))
