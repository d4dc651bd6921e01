//! Whether a request that failed is sent again. Pure: the facts go in, the decision comes out.

/// What became of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No connection was made; nothing was sent.
    Connect,
    /// The connection closed before anything of an answer came.
    Closed,
    /// Anything else: a timeout, a broken answer, a body that the caller did not finish.
    Other,
}

/// The facts of one failed attempt.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    pub failure: Failure,
    /// A connection was opened for this very request.
    pub new_connection: bool,
    /// The request can be sent again, byte for byte.
    pub replayable: bool,
}

/// Whether to send the request once more, on a new connection.
///
/// A connection from the pool that closes is most often one that the upstream had given up
/// before the request reached it. On a new connection that excuse is gone: the request may have
/// been acted on, and is not sent twice.
pub fn sends_again(attempt: Attempt) -> bool {
    attempt.failure == Failure::Closed && !attempt.new_connection && attempt.replayable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pooled_connection_that_closed_is_worth_another_try() {
        let rows = [
            (Failure::Closed, false, true, true),
            (Failure::Closed, true, true, false),
            (Failure::Closed, false, false, false),
            (Failure::Connect, true, true, false),
            (Failure::Connect, false, true, false),
            (Failure::Other, false, true, false),
        ];
        for (failure, new_connection, replayable, again) in rows {
            let attempt = Attempt { failure, new_connection, replayable };
            assert_eq!(sends_again(attempt), again, "{attempt:?}");
        }
    }
}
