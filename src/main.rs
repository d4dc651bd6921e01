//! The program: flags in, exit code out.

use std::process::ExitCode;

/// mimalloc, because bodies of all sizes are allocated and freed on many threads, which is slow
/// with the system allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    weir::cli::run()
}
