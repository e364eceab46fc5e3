"""AdamW over replicas as rows of one matrix, each row with its own rates, clipped by its own norm."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from archsearch.kernels.rowwise import choice
from archsearch.spaces.options import Training
from archsearch.studies.training.schedule import learning_rate


class RowAdamW:
    """The step of `torch.optim.AdamW` on every row, in place and without a word from the host.

    weights, mean, square: [R, P] float32. count: [], steps made, float32.
    """

    def __init__(self, decaying: Tensor, rows: int, device: torch.device) -> None:
        """decaying: [P], 1 where weight decay acts."""
        self.weights, self.mean, self.square = (torch.zeros(rows, len(decaying), device=device) for _ in range(3))
        self.count = torch.zeros((), device=device)
        self._decaying = decaying.to(device)[None]
        self._decay, self._epsilon, self._clip = (torch.zeros(rows, 1, device=device) for _ in range(3))
        self._betas = torch.zeros(rows, 1, device=device), torch.zeros(rows, 1, device=device)

    def load(self, trainings: Sequence[Training], rows: Sequence[Sequence[Tensor]], count: int) -> None:
        """Take over weights, mean and square [P] of each row, after `count` steps; all tensors stay where they are."""
        weights, mean, square = zip(*rows, strict=True)
        self.weights.copy_(torch.stack(list(weights)))
        for kept, given in ((self.mean, mean), (self.square, square)):
            if count:
                kept.copy_(torch.stack(list(given)))
            else:
                kept.zero_()
        self.count.fill_(float(count))
        columns = (
            (self._decay, [training.weight_decay for training in trainings]),
            (self._epsilon, [training.epsilon for training in trainings]),
            (self._clip, [training.clip or float("inf") for training in trainings]),
            (self._betas[0], [training.beta1 for training in trainings]),
            (self._betas[1], [training.beta2 for training in trainings]),
        )
        for column, values in columns:
            column.copy_(torch.tensor(values)[:, None])

    def step(self, gradients: Tensor, rates: Tensor) -> Tensor:
        """One step by gradients [R, P], which are overwritten, at rates [R]; the norms before clipping [R]."""
        norms = cast(Tensor, torch.linalg.vector_norm(gradients, dim=1, keepdim=True))
        shrink = (self._clip / (norms + 1e-6)).clamp_(max=1.0)
        self.count += 1
        beta1, beta2 = self._betas
        rate = rates[:, None]
        step_size, root = rate / (1 - beta1**self.count), (1 - beta2**self.count).sqrt()
        if choice.applies(gradients):
            from archsearch.kernels.rowwise import calls

            each = calls.RowRates(shrink, beta1, beta2, step_size, root, self._epsilon, rate * self._decay)
            calls.adamw(gradients, self.weights, self.mean, self.square, self._decaying, each)
            return norms[:, 0]
        gradients.mul_(shrink)
        self.mean.lerp_(gradients, (1 - beta1).expand_as(gradients))
        self.square.mul_(beta2).add_(gradients.square_().mul_(1 - beta2))
        divisor = torch.sqrt(self.square).div_(root).add_(self._epsilon)
        self.weights.mul_(1 - rate * self._decay * self._decaying)
        self.weights.sub_(divisor.reciprocal_().mul_(self.mean).mul_(step_size))
        return norms[:, 0]


def rate_table(trainings: Sequence[Training], first: int, last: int, steps: int) -> Tensor:
    """[last - first, R]: the learning rates of steps first .. last - 1 of `steps`."""
    rows = [[learning_rate(training, step, steps) for training in trainings] for step in range(first, last)]
    return torch.tensor(rows, dtype=torch.float32)
