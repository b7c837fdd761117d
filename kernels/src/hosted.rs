//! The host form's place: its types exist so that the blocks can name them, and have no values before it is built.

use mlx_rs::Array;

use crate::KernelError;
use crate::block::{
    AttentionShape, AttentionWeights, Backend, HeadShape, MlpShape, MlpWeights, Prepared, Segment,
};
use crate::tensor::HostTensor;

const ABSENT: KernelError = KernelError::Options("the host form is not there yet");

#[derive(Debug)]
pub(crate) enum Attention {}
#[derive(Debug)]
pub(crate) enum Cache {}
#[derive(Debug)]
pub(crate) enum Mlp {}
#[derive(Debug)]
pub(crate) enum Head {}
#[derive(Debug)]
pub(crate) enum Panels {}

impl Cache {
    pub(crate) fn nbytes(&self) -> usize {
        match *self {}
    }
}

impl Attention {
    pub(crate) fn new(
        _: &Backend,
        _: AttentionShape,
        _: &AttentionWeights,
    ) -> Result<Self, KernelError> {
        Err(ABSENT)
    }

    pub(crate) fn new_cache(&self) -> Cache {
        match *self {}
    }

    pub(crate) fn forward(&self, _: &Array, _: &mut [Segment<'_>]) -> Result<Array, KernelError> {
        match *self {}
    }
}

impl Mlp {
    pub(crate) fn new(_: &Backend, _: MlpShape, _: &MlpWeights) -> Result<Self, KernelError> {
        Err(ABSENT)
    }

    pub(crate) fn forward(&self, _: &Array) -> Result<Array, KernelError> {
        match *self {}
    }
}

impl Head {
    pub(crate) fn new(
        _: &Backend,
        _: HeadShape,
        _: &HostTensor,
        _: Prepared,
    ) -> Result<Self, KernelError> {
        Err(ABSENT)
    }

    pub(crate) fn forward(&self, _: &Array, _: &[u32]) -> Result<Array, KernelError> {
        match *self {}
    }
}

pub(crate) fn embed(_: &Backend, panels: &Panels, _: &[u32]) -> Result<Array, KernelError> {
    match *panels {}
}
