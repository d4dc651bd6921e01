//! What outlives a request: the seam, its implementations, and what weir keeps by it.

mod conformance;
mod file;
mod journal;
mod journal_file;
mod log;
pub mod originals;
pub mod places;
pub mod postgres;
mod shared;
mod two_weirs;
pub mod victim;

/// Runs each case in each place that a store can be kept in.
macro_rules! in_every_place {
    ($place:ident as $module:ident: $($case:ident)*) => {
        mod $module {
            use crate::store::places::{Place, $place};
            $(
                #[tokio::test]
                async fn $case() {
                    if <$place as Place>::is_there() {
                        super::$case(<$place as Place>::new()).await;
                    }
                }
            )*
        }
    };
    ($($case:ident)*) => {
        crate::store::in_every_place!(SqliteFile as sqlite_file: $($case)*);
        crate::store::in_every_place!(SqliteMemory as sqlite_memory: $($case)*);
        crate::store::in_every_place!(Postgres as postgres: $($case)*);
    };
}
use in_every_place;
