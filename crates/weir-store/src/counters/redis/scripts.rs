//! Scripts of the counters, each one atomic step in Redis; `scripts/common.lua` is prepended to
//! each. Their headers document arguments and replies.

use std::sync::LazyLock;

use redis::Script;

const COMMON: &str = include_str!("scripts/common.lua");

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {
        $(
            pub(super) static $name: LazyLock<Script> =
                LazyLock::new(|| Script::new(&format!("{COMMON}\n{}", include_str!($file))));
        )*
    };
}

scripts! {
    GENERATION = "scripts/generation.lua";
    HOLD = "scripts/hold.lua";
    SETTLE = "scripts/settle.lua";
    REGISTER = "scripts/register.lua";
    COVER = "scripts/cover.lua";
    BEGIN = "scripts/begin.lua";
    SEEN = "scripts/seen.lua";
    FINISH = "scripts/finish.lua";
    RENEW = "scripts/renew.lua";
    SWEEP = "scripts/sweep.lua";
    LOST = "scripts/lost.lua";
}
