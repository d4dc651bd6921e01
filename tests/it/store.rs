//! Persistent data: the store's interface, its implementations, and their users.

mod conformance;
mod conversations;
mod file;
pub mod journal;
mod journal_file;
mod log;
pub mod originals;
pub mod places;
pub mod postgres;
mod shared;
mod two_weirs;
pub mod victim;

/// Runs each case in every place that can keep a store.
macro_rules! in_every_place {
    ($($case:ident)*) => {
        cases_in!(mod sqlite_file, super::super::places, SqliteFile as Place: $($case)*);
        cases_in!(mod sqlite_memory, super::super::places, SqliteMemory as Place: $($case)*);
        cases_in!(
            #[ignore = "needs PostgreSQL"]
            mod postgres, super::super::places, Postgres as Place: $($case)*
        );
    };
}
use in_every_place;
