"""The networks of the comparison in plain PyTorch, so that no contender depends on another's code."""

from torch import Tensor, nn


def lenet() -> nn.Module:
    """32x32x3; 797,962 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),  # 32 -> 28 -> 14
        *(nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),  # 14 -> 10 -> 5
        nn.Flatten(),
        *(nn.Linear(1600, 384), nn.ReLU()),
        *(nn.Linear(384, 192), nn.ReLU()),
        nn.Linear(192, 10),
    )


def cnn() -> nn.Module:
    """28x28x1; 93,962 parameters."""
    blocks: list[nn.Module] = []
    for inputs, outputs in ((1, 32), (32, 64), (64, 128)):
        blocks += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def mobilenet() -> nn.Module:
    """MobileNet v1 for 32x32x3, batch statistics only; 3,217,226 parameters."""

    def norm(channels: int) -> list[nn.Module]:
        return [nn.BatchNorm2d(channels, track_running_stats=False), nn.ReLU()]

    layers = [nn.Conv2d(3, 32, 3, padding=1, bias=False), *norm(32)]
    inputs = 32
    shape = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for outputs, stride in shape:
        layers += [nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), *norm(inputs)]
        layers += [nn.Conv2d(inputs, outputs, 1, bias=False), *norm(outputs)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(inputs, 10))


def mlp() -> nn.Module:
    """8x8x1; 4,810 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def vgg11() -> nn.Module:
    """32x32x3, without normalization; 9,750,922 parameters."""
    layers: list[nn.Module] = []
    inputs = 3
    for stage in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
        for outputs in stage:
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    dense = [nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), *dense, nn.Linear(512, 10))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), _norm(outputs), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), _norm(outputs)),
        )
        self.side: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.side = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), _norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.main(x) + self.side(x)
        return total.relu()


def resnet18() -> nn.Module:
    """For 32x32x3, batch statistics only; 11,173,962 parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1, bias=False), _norm(64), nn.ReLU()]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(inputs, outputs, stride), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def _norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, track_running_stats=False)


NETS = {"lenet": lenet, "cnn": cnn, "mobilenet": mobilenet, "mlp": mlp, "vgg11": vgg11, "resnet18": resnet18}
