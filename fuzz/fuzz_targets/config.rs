//! Passes libFuzzer's inputs to the properties of `config`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir_fuzz::config::check(input));
