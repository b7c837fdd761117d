//! Which form the blocks take, and weights prepared for it.
//!
//! A [`Backend`] is made and used on the one thread that owns MLX: MLX's streams are thread-local, so it is neither
//! `Send` nor `Sync`, and nothing made from it is.

use std::rc::Rc;
use std::sync::Arc;

use mlx_rs::{Array, Device, Stream, with_stream};

use crate::KernelError;
use crate::graph::GraphMatrix;
use crate::host::isa::Isa;
use crate::host::linear::Panels;
use crate::host::pool::Pool;
use crate::hosted::Scratch;
use crate::matrix::Matrix;
use crate::reference;

/// How the blocks compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// One lazy host op per block on our own CPU kernels. A row's bits depend on nothing but the row and its past.
    Host,
    /// MLX ops on MLX's default device: the form of GPUs.
    Graph,
    /// Plain MLX ops in f32 on the CPU, with dequantised weights: slow and obvious.
    Reference,
}

/// What a backend is made of.
#[derive(Debug, Clone, Copy)]
pub struct BackendOptions {
    /// The form of all its blocks.
    pub form: Form,
    /// Threads of the host form, at least 1; the other forms do not look at it.
    pub threads: usize,
}

/// The form of a model's blocks and what they share. Clones are the same backend.
#[derive(Debug, Clone)]
pub struct Backend(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    form: Form,
    stream: Stream,
    /// Of the host form.
    host: Option<HostParts>,
    gpu: bool,
}

/// What the closures of the host form share.
#[derive(Debug, Clone)]
pub(crate) struct HostParts {
    pub(crate) pool: Arc<Pool>,
    pub(crate) isa: Isa,
    pub(crate) scratch: Arc<Scratch>,
}

/// A matrix prepared for a backend's form: repacked (host) or as MLX arrays. Clones share the memory.
#[derive(Debug, Clone)]
pub struct Prepared {
    rows: usize,
    cols: usize,
    nbytes: usize,
    store: Store,
}

/// The matrix itself.
#[derive(Debug, Clone)]
pub(crate) enum Store {
    Host(Arc<Panels>),
    Graph(Rc<GraphMatrix>),
    /// f32 `[rows, cols]`.
    Reference(Rc<Array>),
}

impl Backend {
    /// A backend of this thread. Starts the host form's threads.
    pub fn new(options: BackendOptions) -> Result<Self, KernelError> {
        // The first guarded call of mlx-rs also installs its error handler; before that MLX would end the process.
        let device = Device::try_default()?;
        let gpu = matches!(device.get_type()?, mlx_rs::DeviceType::Gpu);
        let stream = match options.form {
            Form::Graph => Stream::try_default_on_device(&device)?,
            Form::Host | Form::Reference => Stream::cpu(),
        };
        let host = match options.form {
            Form::Host if options.threads == 0 => {
                return Err(KernelError::Options("the host form needs at least one thread"));
            }
            Form::Host => Some(HostParts {
                pool: Arc::new(Pool::new(options.threads)),
                isa: Isa::detect(),
                scratch: Arc::default(),
            }),
            Form::Graph | Form::Reference => None,
        };
        Ok(Self(Rc::new(Inner { form: options.form, stream, host, gpu })))
    }

    /// The form of this backend's blocks.
    pub fn form(&self) -> Form {
        self.0.form
    }

    /// Checks nothing further (a [`Matrix`] is valid) and lays the matrix out for this backend's form.
    #[expect(clippy::needless_pass_by_value, reason = "the weights are not needed after this")]
    pub fn prepare(&self, matrix: Matrix) -> Result<Prepared, KernelError> {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let (store, nbytes) = match self.form() {
            Form::Host => {
                let panels = Panels::pack(&matrix, self.host()?.isa);
                let nbytes = panels.nbytes();
                (Store::Host(Arc::new(panels)), nbytes)
            }
            Form::Graph => {
                let matrix = GraphMatrix::new(self, &matrix)?;
                let nbytes = matrix.nbytes();
                (Store::Graph(Rc::new(matrix)), nbytes)
            }
            Form::Reference => {
                let dense = reference::dense(self, &matrix)?;
                let nbytes = dense.nbytes();
                (Store::Reference(Rc::new(dense)), nbytes)
            }
        };
        Ok(Prepared { rows, cols, nbytes, store })
    }

    /// Whether MLX's default device, on which the graph form runs, is a GPU.
    pub(crate) fn on_gpu(&self) -> bool {
        self.0.gpu
    }

    pub(crate) fn host(&self) -> Result<&HostParts, KernelError> {
        self.0.host.as_ref().ok_or(KernelError::Foreign { what: "the backend" })
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.0.stream
    }

    /// Runs `build` with this form's stream as the one that mlx-rs adds operations to.
    pub(crate) fn on_stream<T>(&self, build: impl FnOnce() -> T) -> T {
        with_stream(&self.0.stream, build)
    }
}

impl Prepared {
    /// Output features (for a table: its entries).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features (for a table: its width).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of memory it takes.
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    pub(crate) fn form(&self) -> Form {
        match self.store {
            Store::Host(_) => Form::Host,
            Store::Graph(_) => Form::Graph,
            Store::Reference(_) => Form::Reference,
        }
    }

    pub(crate) fn into_store(self) -> Store {
        self.store
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }
}
