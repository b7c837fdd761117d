//! The tensor encodings that are imported, their block sizes, and the names of those that are not.

/// An encoding with an exact counterpart among MLX's formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Encoding {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// bfloat16.
    Bf16,
    /// Blocks of 32: f16 `d`, 16 bytes of nibbles; value `d·(q − 8)`.
    Q4_0,
    /// Blocks of 32: f16 `d`, f16 `m`, 16 bytes of nibbles; value `d·q + m`.
    Q4_1,
    /// Blocks of 32: f16 `d`, 32 signed bytes; value `d·q`.
    Q8_0,
}

/// Elements of one quantised block.
pub(crate) const BLOCK: usize = 32;

impl Encoding {
    /// From ggml's type number; the error is the name, or the number when it is unknown.
    pub(super) fn from_ggml(kind: u32) -> Result<Self, String> {
        Ok(match kind {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            8 => Self::Q8_0,
            30 => Self::Bf16,
            other => return Err(refused_name(other)),
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q8_0 => "Q8_0",
        }
    }

    pub(crate) fn is_quantised(self) -> bool {
        self.block_elements() > 1
    }

    /// Elements that are stored together.
    pub(crate) fn block_elements(self) -> u64 {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q8_0 => BLOCK as u64,
        }
    }

    /// Bytes of [`Self::block_elements`] elements.
    pub(crate) fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 2 + BLOCK / 2,
            Self::Q4_1 => 4 + BLOCK / 2,
            Self::Q8_0 => 2 + BLOCK,
        }
    }

    /// Bytes of `elements` elements; `None` on overflow.
    pub(crate) fn nbytes(self, elements: u64) -> Option<u64> {
        (elements / self.block_elements()).checked_mul(self.block_bytes() as u64)
    }
}

/// ggml's names for what is refused, so that the message says more than a number.
fn refused_name(kind: u32) -> String {
    let name = match kind {
        6 => "Q5_0",
        7 => "Q5_1",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        12 => "Q4_K",
        13 => "Q5_K",
        14 => "Q6_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        other => return format!("of the unknown encoding {other}"),
    };
    name.to_owned()
}
