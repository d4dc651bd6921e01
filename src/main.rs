//! The program: flags in, exit code out.

use std::process::ExitCode;

/// Bodies of all sizes come and go on many threads, which the system's allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    weir::cli::run()
}
