//! Tuning knobs. Temporary.
use std::sync::OnceLock;
macro_rules! knobs { ($($name:ident = $value:expr),* $(,)?) => {
    #[derive(Debug, Clone, Copy)]
    pub struct Knobs { $(pub $name: f64),* }
    static KNOBS: OnceLock<Knobs> = OnceLock::new();
    pub fn knobs() -> &'static Knobs {
        KNOBS.get_or_init(|| {
            let mut k = Knobs { $($name: $value),* };
            if let Ok(text) = std::env::var("KNOBS") {
                for pair in text.split_whitespace() {
                    let (name, value) = pair.split_once('=').expect("name=value");
                    let value: f64 = value.parse().expect("number");
                    match name { $(stringify!($name) => k.$name = value,)* _ => panic!("{name}") }
                }
            }
            k
        })
    }
} }
knobs! {
    low = 0.8, hard = 1.0, hard2 = 1.0, nmax = 0.9, tmin = 0.2, window = 0.2,
    lam = 0.003, lamv = 0.0017, beta = 0.65, bu = 0.03, bt = 0.004, fillt = 24.0,
    short = 0.6, near = 2.0, age0 = 0.5, age1 = 0.3, phrase = 0.4, word = 0.2, cited_word = 1.0,
    header = 6.0, gap = 1.5, entry = 1.5, uall = 120.0, ba = 0.016, line = 240.0, sentence = 60.0, record = 260.0, members = 160.0, keys = 1.0, bent = 0.004,
}
