"""Settings of all tests."""

import torch

# The nets here are small: more threads cost more than they bring, above all beside other processes.
torch.set_num_threads(1)
