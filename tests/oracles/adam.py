"""Adam, line by line: Kingma and Ba 2015, Algorithm 1."""

from __future__ import annotations


class Adam:
    """For one tensor or array; ``decay`` adds decay * value to the gradient.

    With ``largest`` AMSGrad (Reddi et al. 2018), in the form of PyTorch: the maximum
    is that of the second moments before their bias is corrected.
    """

    def __init__(self, rate, *, decay=0.0, largest=False):
        self.rate, self.decay, self.largest = rate, decay, largest
        self.m = self.v = self.most = 0.0
        self.t = 0

    def step(self, value, gradient):
        self.t += 1
        gradient = gradient + self.decay * value
        self.m = 0.9 * self.m + 0.1 * gradient
        self.v = 0.999 * self.v + 0.001 * gradient**2
        v = self.v
        if self.largest:
            self.most = self.v if self.t == 1 else self._maximum(self.most, self.v)
            v = self.most
        mean, size = self.m / (1 - 0.9**self.t), v / (1 - 0.999**self.t)
        return value - self.rate * mean / (size**0.5 + 1e-8)

    @staticmethod
    def _maximum(a, b):
        return a + (b - a) * (b > a)
