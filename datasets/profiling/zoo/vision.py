"""Images, rays and volumes."""

import jax
import jax.numpy as jnp
from jax import lax


def conv(image, kernel, stride=1):
    return lax.conv_general_dilated(image, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def conv_net(image, kernels):
    """Four convolutions at full resolution (Zhang et al., *DnCNN*, TIP 2017, without batch norm)."""
    for kernel in kernels[:-1]:
        image = jax.nn.relu(conv(image, kernel))
    return conv(image, kernels[-1])


def ray_triangles(origins, directions, triangles):
    """Inverse depth of the nearest hit by Möller-Trumbore (1997), 0 for none. rays (n, 3), triangles (m, 3, 3)."""
    a, e1, e2 = triangles[:, 0], triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    p = jnp.cross(directions[:, None], e2[None])
    determinant = jnp.sum(e1[None] * p, axis=-1)
    inverse = 1 / jnp.where(jnp.abs(determinant) < 1e-6, 1.0, determinant)
    s = origins[:, None] - a[None]
    u = jnp.sum(s * p, axis=-1) * inverse
    q = jnp.cross(s, e1[None])
    v = jnp.sum(directions[:, None] * q, axis=-1) * inverse
    t = jnp.sum(e2[None] * q, axis=-1) * inverse
    hit = (jnp.abs(determinant) >= 1e-6) & (u >= 0) & (v >= 0) & (u + v <= 1) & (t > 1e-6)
    return 1 / jnp.min(jnp.where(hit, t, jnp.inf), axis=1), jnp.any(hit, axis=1)


def ray_spheres(origins, directions, centres, radii):
    """Nearest sphere of each ray, with its normal (Shirley, *Ray Tracing in One Weekend*, 2016, ch. 5)."""
    offset = origins[:, None] - centres[None]
    b = jnp.sum(offset * directions[:, None], axis=-1)
    discriminant = b**2 - (jnp.sum(offset**2, axis=-1) - radii**2)
    distance = -b - jnp.sqrt(jnp.maximum(discriminant, 0))
    distance = jnp.where((discriminant > 0) & (distance > 0), distance, jnp.inf)
    nearest = jnp.argmin(distance, axis=1)
    depth = jnp.min(distance, axis=1)
    normal = (origins + depth[:, None] * directions - centres[nearest]) / radii[nearest][:, None]
    return jnp.where(jnp.isfinite(depth)[:, None], normal, 0)


def volume_rendering(origins, directions, first, second):
    """Volume rendering of a small radiance field (Mildenhall et al., *NeRF*, ECCV 2020, eq. 3)."""
    steps = jnp.linspace(0.1, 2.0, 64, dtype=origins.dtype)
    points = origins[:, None] + steps[None, :, None] * directions[:, None]
    octaves = 2.0 ** jnp.arange(4, dtype=origins.dtype)
    angles = (points[..., None, :] * octaves[:, None]).reshape(*points.shape[:2], -1)
    hidden = jax.nn.relu(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1) @ first)
    field = hidden @ second
    density, colour = jax.nn.softplus(field[..., 0]), jax.nn.sigmoid(field[..., 1:])
    opacity = density * (steps[1] - steps[0])
    transmittance = jnp.exp(-(jnp.cumsum(opacity, axis=1) - opacity))
    return jnp.sum((transmittance * (1 - jnp.exp(-opacity)))[..., None] * colour, axis=1)


def gaussian_splats(pixels, means, precisions, colours, opacities):
    """Front-to-back blending of sorted 2-D Gaussians (Kerbl et al., *3D Gaussian Splatting*, SIGGRAPH 2023, eq. 3)."""
    offset = pixels[:, None] - means[None]
    power = -0.5 * jnp.einsum("pgi,gij,pgj->pg", offset, precisions, offset)
    alpha = jnp.minimum(opacities * jnp.exp(power), 0.99)
    transmittance = jnp.cumprod(1 - alpha, axis=1) / (1 - alpha)
    return (transmittance * alpha) @ colours


def non_local_means(patches, centres):
    """Non-local means over all patches (Buades et al., CVPR 2005)."""
    distance = jnp.mean((patches[:, None] - patches[None]) ** 2, axis=-1)
    weights = jnp.exp(-distance / 0.5)
    return weights @ centres / jnp.sum(weights, axis=1)


def box_overlaps(boxes, scores):
    """Suppression weights of matrix NMS (Wang et al., *SOLOv2*, NeurIPS 2020, figure 4), boxes (n, 4)."""
    low = jnp.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = jnp.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    intersection = jnp.prod(jnp.maximum(high - low, 0), axis=-1)
    area = jnp.prod(boxes[:, 2:] - boxes[:, :2], axis=-1)
    overlap = intersection / (area[:, None] + area[None, :] - intersection)
    overlap = jnp.where(scores[:, None] > scores[None, :], overlap, 0)
    worst = jnp.max(overlap, axis=0)
    decay = jnp.min(jnp.exp(-(overlap**2)) / jnp.exp(-(worst[:, None] ** 2)), axis=0)
    return scores * decay


def warp(image, flow):
    """Backward warping by bilinear sampling (Jaderberg et al., *Spatial Transformer Networks*, NIPS 2015, eq. 5)."""
    height, width = image.shape[:2]
    grid = jnp.stack(jnp.meshgrid(jnp.arange(height), jnp.arange(width), indexing="ij"), axis=-1)
    where = jnp.clip(grid + flow, 0, jnp.array([height - 1.001, width - 1.001], image.dtype))
    corner = jnp.floor(where).astype(jnp.int32)
    part = where - corner
    result = 0
    for dy in (0, 1):
        for dx in (0, 1):
            weight = jnp.abs(1 - dy - part[..., 0]) * jnp.abs(1 - dx - part[..., 1])
            result += weight[..., None] * image[corner[..., 0] + dy, corner[..., 1] + dx]
    return jnp.mean((result - image) ** 2)
