//! Gives libFuzzer's inputs to the properties of `config`; holds none of its own.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir_fuzz::config::check(input));
