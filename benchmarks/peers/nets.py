"""The three networks of the comparison in plain PyTorch, so that no contender depends on another's code."""

from torch import nn


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


NETS = {"lenet": lenet, "cnn": cnn, "mobilenet": mobilenet}
