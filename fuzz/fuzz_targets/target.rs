//! Passes libFuzzer's inputs to the properties of `target`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir_fuzz::target::check(input));
