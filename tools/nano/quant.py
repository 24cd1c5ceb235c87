"""The two number formats of the checkpoints: MXFP4 for experts, FP8 in blocks for dense matrices.

Each has `..._round`, the nearest values that the format can say with a gradient that passes straight through, and
`..._encode`, the bytes.  Both round to the same values.
"""
import torch

GROUP = 32  # inputs that share an MXFP4 scale
BLOCK = 128  # rows and columns that share an FP8 scale
E4M3_MAX = 448.0
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_MIDDLES = tuple((a + b) / 2 for a, b in zip(E2M1, E2M1[1:]))
constants = {}


def constant(values, device):
    """A tensor made once a device: a recorded graph cannot copy from the host."""
    key = values, device
    if key not in constants:
        constants[key] = torch.tensor(values, device=device)
    return constants[key]


def straight_through(w, rounded):
    return w + (rounded - w).detach()


# ------------------------------------------------------------------------------------------------------- MXFP4


def mxfp4_exponents(groups):
    """The least power of two with which the largest magnitude is at most 6."""
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=2.0 ** -120)
    return torch.ceil(torch.log2(largest / 6.0))


def mxfp4_round(w):
    groups = w.detach().float().reshape(-1, GROUP)
    scale = torch.exp2(mxfp4_exponents(groups))
    x = groups / scale
    codes = torch.bucketize(x.abs(), constant(E2M1_MIDDLES, w.device))
    values = constant(E2M1, w.device)[codes] * torch.sign(x) * scale
    return straight_through(w, values.reshape(w.shape))


def mxfp4_encode(w):
    """(packed, scales): two codes a byte, the even column low; a scale byte a group."""
    groups = w.detach().float().reshape(-1, GROUP)
    exponents = mxfp4_exponents(groups)
    x = groups / torch.exp2(exponents)
    codes = torch.bucketize(x.abs(), constant(E2M1_MIDDLES, w.device)).to(torch.uint8)
    codes |= ((x < 0) & (codes > 0)).to(torch.uint8) * 8
    codes = codes.reshape(w.shape)
    packed = codes[..., 0::2] | codes[..., 1::2] * 16
    return packed, (exponents + 127).to(torch.uint8).reshape(*w.shape[:-1], -1)


def mxfp4_decode(packed, scales):
    codes = torch.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1).long()
    values = constant(E2M1, packed.device)[codes & 7] * torch.where(codes > 7, -1.0, 1.0)
    groups = values.reshape(*scales.shape, GROUP) * torch.exp2(scales.float() - 127).unsqueeze(-1)
    return groups.reshape(values.shape)


# --------------------------------------------------------------------------------------------------------- FP8


def blocks_of(w, chunks):
    """[chunks, block rows, BLOCK, block columns, BLOCK]: blocks run through a chunk and start anew at the next one."""
    rows, cols = w.shape[0] // chunks, w.shape[1]
    padded = torch.nn.functional.pad(w.reshape(chunks, rows, cols), (0, -cols % BLOCK, 0, -rows % BLOCK))
    return padded.reshape(chunks, -1, BLOCK, padded.shape[2] // BLOCK, BLOCK)


def unblock(blocks, like, chunks):
    rows, cols = like.shape[0] // chunks, like.shape[1]
    flat = blocks.reshape(chunks, blocks.shape[1] * BLOCK, -1)
    return flat[:, :rows, :cols].reshape(like.shape)


def e4m3(x):
    """The nearest value of the format, ties to even; |x| <= 448."""
    exponent = (torch.frexp(x)[1] - 1).clamp(min=-6)
    step = torch.exp2((exponent - 3).to(x.dtype))
    return torch.round(x / step) * step


def fp8_parts(w, chunks):
    """(values / scale rounded, scale), as blocks."""
    blocks = blocks_of(w.detach().float(), chunks)
    scale = blocks.abs().amax((2, 4), keepdim=True).clamp(min=1e-12) / E4M3_MAX
    return e4m3((blocks / scale).clamp(-E4M3_MAX, E4M3_MAX)), scale


def fp8_round(w, chunks=1):
    values, scale = fp8_parts(w, chunks)
    return straight_through(w, unblock(values * scale, w, chunks))


def fp8_encode(w, chunks=1):
    """(codes, scales [block rows of all chunks, block columns])"""
    values, scale = fp8_parts(w, chunks)
    x = unblock(values, w, chunks)
    size = x.abs()
    exponent = (torch.frexp(size)[1] - 1).clamp(min=-6)
    fraction = size / torch.exp2((exponent - 3).to(x.dtype))  # 8..15, below 8 where subnormal
    codes = torch.where(fraction < 8, fraction, (exponent + 6) * 8.0 + fraction).to(torch.uint8)
    codes |= (x < 0).to(torch.uint8) * 128
    return codes, scale.reshape(-1, scale.shape[3])


def fp8_decode(codes, scales, chunks=1):
    size = (codes & 127).long()
    exponent, fraction = size >> 3, (size & 7).float()
    values = torch.where(exponent > 0, (8 + fraction) * torch.exp2(exponent.float() - 10), fraction * 2.0 ** -9)
    values = torch.where(codes > 127, -values, values)
    blocks = blocks_of(values, chunks)
    return unblock(blocks * scales.reshape(chunks, -1, 1, scales.shape[1], 1), values, chunks)
