//! Facts about MLX and this machine, and MLX's memory controls: what `doctor` prints and the worker's flags set.
//!
//! Everything here is process-wide. Which library was loaded decides the backend, at run time: the same binary runs on
//! the CPU or on CUDA, depending on where the dynamic loader found libmlx.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::PathBuf;
use std::ptr;

use mlx_rs::{Device, DeviceType, memory};

use crate::KernelError;
use crate::host::isa::Isa;

/// What the loaded MLX computes on by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compute {
    /// No GPU: MLX's CPU backend.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
    /// Apple GPUs.
    Metal,
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Metal => "metal",
        })
    }
}

/// The version of the loaded MLX, such as `0.32.2`.
pub fn mlx_version() -> Result<String, KernelError> {
    install_error_handler()?;
    // SAFETY: the string is created, filled, read and freed here; on failure it stays empty.
    unsafe {
        let mut version = mlx_sys::mlx_string_new();
        mlx_sys::mlx_version(&raw mut version);
        let text = text_of(mlx_sys::mlx_string_data(version));
        mlx_sys::mlx_string_free(version);
        Ok(text)
    }
}

/// What MLX's default device of this process is.
pub fn compute() -> Result<Compute, KernelError> {
    if matches!(Device::try_default()?.get_type()?, DeviceType::Cpu) {
        return Ok(Compute::Cpu);
    }
    let mut cuda = false;
    // SAFETY: writes one bool.
    unsafe { mlx_sys::mlx_cuda_is_available(&raw mut cuda) };
    Ok(if cuda { Compute::Cuda } else { Compute::Metal })
}

/// What MLX knows of its default device, as names and values: `device_name`, `architecture`, memory sizes in bytes.
pub fn facts() -> Result<Vec<(String, String)>, KernelError> {
    install_error_handler()?;
    let mut facts = Vec::new();
    // SAFETY: handles are created and freed here, in order; every pointer read belongs to one that is still alive.
    unsafe {
        let mut device = mlx_sys::mlx_device_new();
        let mut info = mlx_sys::mlx_device_info_new();
        let mut keys = mlx_sys::mlx_vector_string_new();
        if mlx_sys::mlx_get_default_device(&raw mut device) == 0
            && mlx_sys::mlx_device_info_get(&raw mut info, device) == 0
            && mlx_sys::mlx_device_info_get_keys(&raw mut keys, info) == 0
        {
            for index in 0..mlx_sys::mlx_vector_string_size(keys) {
                let mut key = ptr::null_mut();
                mlx_sys::mlx_vector_string_get(&raw mut key, keys, index);
                if let Some(value) = fact(info, key) {
                    facts.push((text_of(key), value));
                }
            }
        }
        mlx_sys::mlx_vector_string_free(keys);
        mlx_sys::mlx_device_info_free(info);
        mlx_sys::mlx_device_free(device);
    }
    facts.sort();
    Ok(facts)
}

/// One value of a device's facts.
///
/// # Safety
///
/// `info` is a live handle and `key` a string.
unsafe fn fact(info: mlx_sys::mlx_device_info, key: *const c_char) -> Option<String> {
    if key.is_null() {
        return None;
    }
    let (mut is_text, mut text, mut number) = (false, ptr::null(), 0_usize);
    // SAFETY: by this function's contract; the text lives as long as `info` and is copied.
    unsafe {
        if mlx_sys::mlx_device_info_is_string(&raw mut is_text, info, key) != 0 {
            return None;
        }
        if is_text {
            (mlx_sys::mlx_device_info_get_string(&raw mut text, info, key) == 0)
                .then(|| text_of(text))
        } else {
            (mlx_sys::mlx_device_info_get_size(&raw mut number, info, key) == 0)
                .then(|| number.to_string())
        }
    }
}

/// Where the dynamic loader found libmlx; `None` if MLX is linked statically (macOS) or the system does not tell.
pub fn library_path() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().find_map(|line| {
        // address perms offset device inode path; the path may hold spaces.
        let path = &line[line.find('/')?..];
        path.rsplit('/').next().is_some_and(|name| name.starts_with("libmlx.so")).then_some(path)
    })?;
    Some(PathBuf::from(path))
}

/// The instruction-set extensions of this CPU that the host kernels can use.
pub fn cpu_features() -> Vec<&'static str> {
    macro_rules! detected {
        ($detect:ident: $($name:tt),*) => {
            [$(($name, std::arch::$detect!($name))),*]
                .into_iter()
                .filter_map(|(name, present)| present.then_some(name))
                .collect()
        };
    }
    #[cfg(target_arch = "x86_64")]
    return detected!(is_x86_feature_detected:
        "avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16");
    #[cfg(target_arch = "aarch64")]
    return detected!(is_aarch64_feature_detected: "neon", "fp16", "dotprod", "i8mm", "bf16", "sve");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    Vec::new()
}

/// The instruction set that the host form computes with.
pub fn isa() -> Isa {
    Isa::detect()
}

/// Limits on MLX's allocator, in bytes; `None` leaves MLX's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Above this MLX waits for running work before it allocates more, and then uses swap.
    pub memory_bytes: Option<usize>,
    /// Freed buffers kept for reuse.
    pub cache_bytes: Option<usize>,
    /// Memory kept resident on Metal; ignored elsewhere.
    pub wired_bytes: Option<usize>,
}

/// What MLX's allocator holds, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// In arrays.
    pub active_bytes: usize,
    /// Freed and kept for reuse.
    pub cache_bytes: usize,
    /// The highest `active_bytes` so far.
    pub peak_bytes: usize,
}

/// Sets the limits that are given.
pub fn set_memory_limits(limits: MemoryLimits) -> Result<(), KernelError> {
    if let Some(bytes) = limits.memory_bytes {
        memory::set_memory_limit(bytes)?;
    }
    if let Some(bytes) = limits.cache_bytes {
        memory::set_cache_limit(bytes)?;
    }
    if let Some(bytes) = limits.wired_bytes
        && compute()? == Compute::Metal
    {
        memory::set_wired_limit(bytes)?;
    }
    Ok(())
}

/// What MLX's allocator holds now. The host form's weights and caches are not its business.
pub fn memory_use() -> Result<MemoryUse, KernelError> {
    Ok(MemoryUse {
        active_bytes: memory::active_memory()?,
        cache_bytes: memory::cache_memory()?,
        peak_bytes: memory::peak_memory()?,
    })
}

/// Gives freed buffers back to the system.
pub fn clear_memory_cache() -> Result<(), KernelError> {
    Ok(memory::clear_cache()?)
}

/// Makes MLX report errors instead of ending the process: mlx-rs installs its handler on its first guarded call, which
/// direct calls to mlx-sys are not.
pub(crate) fn install_error_handler() -> Result<(), KernelError> {
    Device::try_default()?;
    Ok(())
}

/// A copy of a C string; empty for null.
///
/// # Safety
///
/// `text` is null or a string that lives during the call.
unsafe fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by this function's contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use mlx_rs::Array;

    use super::*;

    #[test]
    fn the_library_that_is_loaded_is_the_one_that_was_built_against() {
        let version = mlx_version().unwrap();
        assert!(version.starts_with("0.32."), "{version}");
        if cfg!(target_os = "linux") {
            let path = library_path().expect("libmlx.so is loaded");
            assert!(path.is_file(), "{}", path.display());
        }
    }

    #[test]
    fn the_default_device_is_described() {
        let compute = compute().unwrap();
        assert_eq!(compute == Compute::Cpu, cfg!(target_os = "linux") && !cuda_library());
        let facts = facts().unwrap();
        assert!(
            facts.iter().any(|(name, value)| name == "device_name" && !value.is_empty()),
            "{facts:?}"
        );
    }

    fn cuda_library() -> bool {
        library_path().is_some_and(|path| path.with_file_name("libmlx_cuda.so").exists())
    }

    #[test]
    fn memory_is_counted_and_given_back() {
        let before = memory_use().unwrap();
        let array = Array::from_slice(&[1f32; 1 << 16], &[1 << 16]);
        array.eval().unwrap();
        let held = memory_use().unwrap();
        assert!(held.active_bytes >= before.active_bytes + (1 << 18), "{held:?}");
        assert!(held.peak_bytes >= held.active_bytes);
        drop(array);
        let limits = MemoryLimits {
            memory_bytes: Some(1 << 33),
            cache_bytes: Some(1 << 20),
            wired_bytes: None,
        };
        set_memory_limits(limits).unwrap();
        assert_eq!(memory::memory_limit().unwrap(), 1 << 33);
        clear_memory_cache().unwrap();
        let after = memory_use().unwrap();
        assert_eq!(after.cache_bytes, 0);
        assert!(after.active_bytes < held.active_bytes);
    }
}
