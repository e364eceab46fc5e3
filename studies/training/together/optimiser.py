"""AdamW over replicas as rows of one matrix, each row with its own rates, clipped by its own norm."""

from collections.abc import Sequence

import torch
from torch import Tensor

from archsearch.spaces.options import Training
from archsearch.studies.training.schedule import learning_rate


class RowAdamW:
    """The step of `torch.optim.AdamW` on every row, in place and without a word from the host.

    weights, mean, square: [R, P] float32. count: [], steps made, float32.
    """

    def __init__(
        self, trainings: Sequence[Training], decaying: Tensor, weights: Tensor, mean: Tensor, square: Tensor, count: int
    ) -> None:
        """decaying: [P], 1 where weight decay acts."""
        self.weights, self.mean, self.square = weights, mean, square
        device = weights.device

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)[:, None]

        self.count = torch.tensor(float(count), device=device)
        self._decaying = decaying.to(device)[None]
        self._decay = column([training.weight_decay for training in trainings])
        self._epsilon = column([training.epsilon for training in trainings])
        self._clip = column([training.clip or float("inf") for training in trainings])
        self._betas = column([t.beta1 for t in trainings]), column([t.beta2 for t in trainings])

    def step(self, gradients: Tensor, rates: Tensor) -> Tensor:
        """One step by gradients [R, P], which are overwritten, at rates [R]; the norms before clipping [R]."""
        norms = gradients.square().sum(1, keepdim=True).sqrt_()
        gradients.mul_((self._clip / (norms + 1e-6)).clamp_(max=1.0))
        self.count += 1
        beta1, beta2 = self._betas
        rate = rates[:, None]
        self.mean.lerp_(gradients, (1 - beta1).expand_as(gradients))
        self.square.mul_(beta2).add_(gradients.square_().mul_(1 - beta2))
        step_size = rate / (1 - beta1**self.count)
        divisor = torch.sqrt(self.square).div_((1 - beta2**self.count).sqrt()).add_(self._epsilon)
        self.weights.mul_(1 - rate * self._decay * self._decaying)
        self.weights.sub_(divisor.reciprocal_().mul_(self.mean).mul_(step_size))
        return norms[:, 0]


def rate_table(trainings: Sequence[Training], first: int, last: int, steps: int) -> Tensor:
    """[last - first, R]: the learning rates of steps first .. last - 1 of `steps`."""
    rows = [[learning_rate(training, step, steps) for training in trainings] for step in range(first, last)]
    return torch.tensor(rows, dtype=torch.float32)
