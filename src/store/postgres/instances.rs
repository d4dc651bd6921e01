//! Which weirs live: each says so in a row of its own again and again, by the server's clock. One that
//! has not for a while has ended, or is cut off and must take it that others settle its requests.

use std::time::Duration;

use super::connection::{Connection, Failure};

/// How often a weir says that it lives.
pub const BEAT_INTERVAL: Duration = Duration::from_secs(2);
/// How long one lives on that says so no more. Behind it are five missed words.
pub const LIFE: &str = "interval '10 seconds'";

/// Says that `id` lives. Where it had not for too long, it begins anew.
pub async fn beat(connection: &Connection, id: &[u8; 16]) -> Result<(), Failure> {
    let sql = format!(
        "INSERT INTO weir_instance AS own VALUES ($1, clock_timestamp(), clock_timestamp())
         ON CONFLICT (id) DO UPDATE SET seen = excluded.seen,
         since = CASE WHEN own.seen < excluded.seen - {LIFE} THEN excluded.seen ELSE own.since END"
    );
    connection.execute(&sql, &[&&id[..]]).await.map(drop)
}

/// Says that `id` has ended, and forgets those that ended long ago.
pub async fn end(connection: &Connection, id: &[u8; 16]) -> Result<(), Failure> {
    let sql =
        "DELETE FROM weir_instance WHERE id = $1 OR seen < clock_timestamp() - interval '1 day'";
    connection.execute(sql, &[&&id[..]]).await.map(drop)
}
