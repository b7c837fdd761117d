//! Rotary position embedding as numbers: which dimensions turn, and how fast.
//!
//! Owns the formulas that turn a checkpoint's `rope_scaling` into periods, as mlx-lm 0.32 computes them. Refuses
//! parameters that give a period that is not a positive number. Rotating is the blocks' work.

use std::f64::consts::TAU;

/// The rotation of a query or key head at position `p`: pair `i` turns by the angle `p / periods[i]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Leading dimensions of a head that turn; the others pass unchanged. Even.
    pub dims: usize,
    /// One period per pair, `dims / 2`: the inverse of the frequency, in positions per radian.
    pub periods: Vec<f32>,
    /// Factor on the turned dimensions (YaRN), 1 otherwise.
    pub mscale: f32,
    /// Whether a pair is two neighbours `(2i, 2i + 1)`; otherwise one from each half, `(i, i + dims / 2)`.
    pub traditional: bool,
}

/// What a model's configuration says about its rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Width of a head.
    pub head_dim: usize,
    /// Share of the head that turns, above 0 and at most 1 (`partial_rotary_factor`).
    pub partial: f64,
    /// Base of the geometric row of periods (`rope_theta`).
    pub theta: f64,
    /// How the periods are stretched.
    pub scaling: RopeScaling,
}

/// How long contexts stretch the periods (`rope_scaling`).
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All alike.
    Linear {
        /// Factor on every period.
        factor: f64,
    },
    /// Long periods only, with a smooth passage (`llama3`).
    Llama3 {
        /// Factor on long periods.
        factor: f64,
        /// Periods longer than `original_max_positions / low_freq_factor` are long.
        low_freq_factor: f64,
        /// Periods shorter than `original_max_positions / high_freq_factor` stay.
        high_freq_factor: f64,
        /// Context the model was first trained on.
        original_max_positions: f64,
    },
    /// YaRN, with a ramp over the pairs and a factor on the result.
    Yarn {
        /// Factor on the slow pairs.
        factor: f64,
        /// Context the model was first trained on.
        original_max_positions: f64,
        /// Turns within that context above which a pair stays (32).
        beta_fast: f64,
        /// Turns below which a pair is stretched in full (1).
        beta_slow: f64,
        /// Weight of the result's factor (1).
        mscale: f64,
        /// Weight of its divisor (0).
        mscale_all_dim: f64,
    },
}

/// Why a configuration gives no rotation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RopeError {
    /// The turned dimensions are none, odd or more than the head has.
    #[error(
        "{partial} of a head of {head_dim} is {dims} rotary dimensions: expected an even number from 2 on"
    )]
    Dims {
        /// Share asked for.
        partial: f64,
        /// Width of the head.
        head_dim: usize,
        /// The product, rounded down.
        dims: usize,
    },
    /// A parameter that is not a positive, finite number.
    #[error("rope {name} is {value}: expected a positive number")]
    Parameter {
        /// Which.
        name: &'static str,
        /// What it was.
        value: f64,
    },
}

impl Rope {
    /// The rotation that a configuration describes, with pairs from the two halves (`traditional: false`).
    ///
    /// Computed in f64 and rounded once. Formulas: Su et al. 2021; Peng et al. 2023 (YaRN); Llama 3.1's code, as in
    /// mlx-lm's `rope_utils.py`.
    pub fn from_spec(spec: &RopeSpec) -> Result<Self, RopeError> {
        let RopeSpec { head_dim, partial, theta, ref scaling } = *spec;
        let share = if partial > 0.0 && partial <= 1.0 { partial } else { 0.0 };
        let dims = (head_dim as f64 * share) as usize;
        if dims == 0 || !dims.is_multiple_of(2) {
            return Err(RopeError::Dims { partial, head_dim, dims });
        }
        positive("theta", theta)?;
        scaling.check()?;
        let plain = |pair: usize| theta.powf((2 * pair) as f64 / dims as f64);
        let periods = (0..dims / 2)
            .map(|pair| scaling.stretch(plain(pair), pair, dims, theta))
            .map(|period| positive("period", period).map(|period| period as f32))
            .collect::<Result<_, _>>()?;
        Ok(Self { dims, periods, mscale: scaling.result_factor() as f32, traditional: false })
    }
}

impl RopeScaling {
    fn check(&self) -> Result<(), RopeError> {
        let named: &[(&'static str, f64)] = match *self {
            Self::None => &[],
            Self::Linear { factor } => &[("factor", factor)],
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                &[
                    ("factor", factor),
                    ("low_freq_factor", low_freq_factor),
                    ("high_freq_factor", high_freq_factor),
                    ("high_freq_factor - low_freq_factor", high_freq_factor - low_freq_factor),
                    ("original_max_position_embeddings", original_max_positions),
                ]
            }
            Self::Yarn { factor, original_max_positions, beta_fast, beta_slow, .. } => &[
                ("factor", factor),
                ("original_max_position_embeddings", original_max_positions),
                ("beta_fast", beta_fast),
                ("beta_slow", beta_slow),
            ],
        };
        named.iter().try_for_each(|&(name, value)| positive(name, value).map(drop))
    }

    /// The period of a pair, given the period without scaling.
    fn stretch(&self, plain: f64, pair: usize, dims: usize, theta: f64) -> f64 {
        match *self {
            Self::None => plain,
            Self::Linear { factor } => plain * factor,
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                let turns = original_max_positions / (TAU * plain);
                if turns < low_freq_factor {
                    plain * factor
                } else if turns > high_freq_factor {
                    plain
                } else {
                    let smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    plain / ((1.0 - smooth) / factor + smooth)
                }
            }
            Self::Yarn { factor, original_max_positions, beta_fast, beta_slow, .. } => {
                let pair_with_turns = |turns: f64| {
                    dims as f64 * (original_max_positions / (TAU * turns)).ln() / (2.0 * theta.ln())
                };
                let low = pair_with_turns(beta_fast).floor().max(0.0);
                let mut high = pair_with_turns(beta_slow).ceil().min(dims as f64 - 1.0);
                if high == low {
                    high += 0.001;
                }
                let keep = 1.0 - ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                (factor * plain * plain) / (factor * plain * keep + plain * (1.0 - keep))
            }
        }
    }

    fn result_factor(&self) -> f64 {
        let Self::Yarn { factor, mscale, mscale_all_dim, .. } = *self else { return 1.0 };
        let weighted =
            |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
        weighted(mscale) / weighted(mscale_all_dim)
    }
}

fn positive(name: &'static str, value: f64) -> Result<f64, RopeError> {
    if value > 0.0 && (value as f32).is_finite() {
        return Ok(value);
    }
    Err(RopeError::Parameter { name, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(scaling: RopeScaling) -> RopeSpec {
        RopeSpec { head_dim: 8, partial: 1.0, theta: 10_000.0, scaling }
    }

    fn periods(scaling: RopeScaling) -> Vec<f32> {
        Rope::from_spec(&spec(scaling)).unwrap().periods
    }

    #[test]
    fn periods_are_a_geometric_row() {
        assert_eq!(periods(RopeScaling::None), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(periods(RopeScaling::Linear { factor: 4.0 }), [4.0, 40.0, 400.0, 4000.0]);
        let half = RopeSpec { partial: 0.5, ..spec(RopeScaling::None) };
        let rope = Rope::from_spec(&half).unwrap();
        assert_eq!((rope.dims, rope.periods, rope.mscale), (4, vec![1.0, 100.0], 1.0));
    }

    #[test]
    fn llama3_keeps_short_and_stretches_long_periods() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 1000.0,
        };
        // Turns within 1000 positions: 159, 15.9, 1.59 (between 1 and 4), 0.159.
        let smooth = (1000.0 / (TAU * 100.0) - 1.0) / 3.0;
        let middle = (100.0 / ((1.0 - smooth) / 8.0 + smooth)) as f32;
        assert_eq!(periods(scaling), [1.0, 10.0, middle, 8000.0]);
    }

    #[test]
    fn yarn_ramps_over_the_pairs() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original_max_positions: 4096.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: 1.0,
            mscale_all_dim: 0.0,
        };
        // 8 ln(4096 / (2 pi 32)) / (2 ln 1e4) = 1.309, and 2.815 for one turn: the ramp runs from pair 1 to pair 3.
        let rope = Rope::from_spec(&spec(scaling)).unwrap();
        assert_eq!(rope.periods, [1.0, 10.0, 160.0, 4000.0]);
        assert_eq!(rope.mscale, (0.1 * 4f64.ln() + 1.0) as f32);
    }

    #[test]
    fn nonsense_is_refused() {
        for partial in [0.0, -1.0, 1.5, 0.125, f64::NAN] {
            let refused = Rope::from_spec(&RopeSpec { partial, ..spec(RopeScaling::None) });
            assert!(matches!(refused, Err(RopeError::Dims { .. })), "{partial}");
        }
        for factor in [0.0, -2.0, f64::INFINITY, f64::NAN] {
            let refused = Rope::from_spec(&spec(RopeScaling::Linear { factor }));
            assert!(matches!(refused, Err(RopeError::Parameter { name: "factor", .. })));
        }
    }
}
