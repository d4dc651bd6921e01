//! Scripts of the counters, each one atomic step in Redis; `scripts/common.lua` is prepended to
//! each. Their headers document arguments and replies.

use crate::redis::scripts;

scripts! {
    "scripts/common.lua";
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
