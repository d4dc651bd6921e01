//! Gives libFuzzer's inputs to the properties of `unasked`; holds none of its own.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir_fuzz::unasked::check(input));
