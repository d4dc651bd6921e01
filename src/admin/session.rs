//! Logins of the dashboard: sessions, one-time codes and limits on attempts, all in memory. Only
//! hashes of secrets are kept. Reads cookies, decides nothing about routes.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use blake3::Hash;
use http::HeaderMap;
use http::header::COOKIE;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::random_secret;

/// Maximum number of sessions; a further login ends the one that was idle longest.
const MAX_SESSIONS: usize = 64;
/// Maximum number of unused codes; a further one replaces the oldest.
const MAX_CODES: usize = 8;
/// Longest pause between two requests of a session, and its longest life.
const MAX_IDLE: Duration = Duration::from_secs(2 * 60 * 60);
const MAX_AGE: Duration = Duration::from_secs(12 * 60 * 60);
/// Life of a one-time code.
const CODE_LIFE: Duration = Duration::from_secs(2 * 60);
/// Maximum number of failed logins of one address per window.
const MAX_FAILURES: u32 = 10;
const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of addresses whose failures are counted apart; others are counted together.
const MAX_ADDRESSES: usize = 1024;
/// Maximum number of cookies of our name that are compared.
const MAX_COOKIES: usize = 8;

/// Result of a login.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LoginAttempt {
    Granted,
    Refused,
    /// Too many attempts failed; how long to wait.
    TooMany(Duration),
}

/// Sessions of one listener.
#[derive(Debug)]
pub(super) struct Sessions {
    /// Name of the cookie. Browsers send cookies to all ports of a host, so it names the port.
    cookie: String,
    /// Whether browsers may send the cookie over TLS alone.
    is_secure: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sessions: HashMap<Hash, Session>,
    /// Codes with the time of their end.
    codes: HashMap<Hash, Instant>,
    failures: HashMap<IpAddr, Failures>,
}

#[derive(Debug, Clone, Copy)]
struct Session {
    begun: Instant,
    seen: Instant,
}

impl Session {
    fn is_over(&self, now: Instant) -> bool {
        let since = |moment: Instant| now.saturating_duration_since(moment);
        since(self.seen) >= MAX_IDLE || since(self.begun) >= MAX_AGE
    }
}

/// Failed logins since the start of a window.
#[derive(Debug, Clone, Copy)]
struct Failures {
    since: Instant,
    count: u32,
}

impl Sessions {
    pub(super) fn new(port: u16, is_secure: bool) -> Self {
        Self { cookie: format!("weir_session_{port}"), is_secure, state: Mutex::default() }
    }

    /// Judges a login by `is_right`. Wrong ones of an address are counted, and slow down their sender alone: a
    /// right one always succeeds, since others may share its address.
    pub(super) fn attempt(&self, address: IpAddr, now: Instant, is_right: bool) -> LoginAttempt {
        if is_right {
            return LoginAttempt::Granted;
        }
        let place = network(address);
        let mut state = self.state.lock();
        let ended =
            |failures: &Failures| now.saturating_duration_since(failures.since) >= FAILURE_WINDOW;
        state.failures.retain(|_, failures| !ended(failures));
        let is_known = state.failures.contains_key(&place);
        let is_full = state.failures.len() >= MAX_ADDRESSES;
        let place = if is_full && !is_known { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { place };
        let failures = state.failures.entry(place).or_insert(Failures { since: now, count: 0 });
        if failures.count >= MAX_FAILURES {
            let passed = now.saturating_duration_since(failures.since);
            return LoginAttempt::TooMany(FAILURE_WINDOW.saturating_sub(passed));
        }
        failures.count += 1;
        LoginAttempt::Refused
    }

    /// Starts a session; returns the `Set-Cookie` header that gives it to the browser.
    pub(super) fn begin(&self, now: Instant) -> io::Result<String> {
        let (secret, hash) = random()?;
        let mut state = self.state.lock();
        state.sessions.retain(|_, session| !session.is_over(now));
        make_room(&mut state.sessions, MAX_SESSIONS, |session| session.seen);
        state.sessions.insert(hash, Session { begun: now, seen: now });
        Ok(self.set_cookie(&secret, MAX_AGE))
    }

    /// Returns whether a request belongs to a session, and prolongs it.
    pub(super) fn is_of_one(&self, headers: &HeaderMap, now: Instant) -> bool {
        let mut state = self.state.lock();
        self.hashes(headers).any(|hash| {
            let Some(session) = state.sessions.get_mut(&hash) else { return false };
            if session.is_over(now) {
                state.sessions.remove(&hash);
                return false;
            }
            session.seen = now;
            true
        })
    }

    /// Ends the session of a request; returns the `Set-Cookie` header that removes its cookie.
    pub(super) fn end(&self, headers: &HeaderMap) -> String {
        let mut state = self.state.lock();
        for hash in self.hashes(headers) {
            state.sessions.remove(&hash);
        }
        self.set_cookie("", Duration::ZERO)
    }

    /// Creates a code that logs in once.
    pub(super) fn code(&self, now: Instant) -> io::Result<String> {
        let (secret, hash) = random()?;
        let mut state = self.state.lock();
        state.codes.retain(|_, end| now < *end);
        make_room(&mut state.codes, MAX_CODES, |end| *end);
        state.codes.insert(hash, now + CODE_LIFE);
        Ok(secret)
    }

    /// Uses up a code; returns whether it was valid.
    pub(super) fn redeem(&self, code: &str, now: Instant) -> bool {
        let end = self.state.lock().codes.remove(&blake3::hash(code.as_bytes()));
        end.is_some_and(|end| now < end)
    }

    fn set_cookie(&self, value: &str, age: Duration) -> String {
        let secure = if self.is_secure { "; Secure" } else { "" };
        format!(
            "{}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={}{secure}",
            self.cookie,
            age.as_secs()
        )
    }

    /// Returns the hashes of the cookies of our name.
    fn hashes(&self, headers: &HeaderMap) -> impl Iterator<Item = Hash> {
        let cookies = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
        let pairs =
            cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.split_once('='));
        let own = pairs.filter(|(name, _)| name.trim() == self.cookie);
        own.take(MAX_COOKIES).map(|(_, value)| blake3::hash(value.trim().as_bytes()))
    }
}

/// Returns the address whose failures are counted: of IPv6 the network, since one host has many
/// addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

/// Removes the oldest of a full set.
fn make_room<T>(all: &mut HashMap<Hash, T>, most: usize, age: impl Fn(&T) -> Instant) {
    let oldest = all.iter().min_by_key(|(_, own)| age(own)).map(|(hash, _)| *hash);
    if let Some(oldest) = oldest.filter(|_| all.len() >= most) {
        all.remove(&oldest);
    }
}

fn random() -> io::Result<(String, Hash)> {
    let secret = random_secret()?.expose().to_owned();
    let hash = blake3::hash(secret.as_bytes());
    Ok((secret, hash))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn headers(set_cookie: &str) -> HeaderMap {
        let pair = set_cookie.split(';').next().expect("a pair");
        let mut headers = HeaderMap::new();
        let value = HeaderValue::try_from(format!("a=b; {pair}")).expect("a value");
        headers.insert(COOKIE, value);
        headers
    }

    #[test]
    fn sessions_end_when_idle_old_or_logged_out() {
        let sessions = Sessions::new(8410, false);
        let start = Instant::now();
        let begin = || headers(&sessions.begin(start).expect("random bytes"));
        let (idle, old, out) = (begin(), begin(), begin());
        let almost = MAX_IDLE - Duration::from_secs(1);
        assert!(sessions.is_of_one(&idle, start + almost));
        assert!(!sessions.is_of_one(&idle, start + almost + MAX_IDLE));
        let mut now = start;
        while now + almost < start + MAX_AGE {
            now += almost;
            assert!(sessions.is_of_one(&old, now));
        }
        assert!(!sessions.is_of_one(&old, start + MAX_AGE));
        assert!(sessions.is_of_one(&out, start));
        assert!(sessions.end(&out).contains("Max-Age=0"));
        assert!(!sessions.is_of_one(&out, start));
        assert!(!sessions.is_of_one(&HeaderMap::new(), start));
        assert!(sessions.state.lock().sessions.is_empty());
    }

    #[test]
    fn sessions_are_bounded() {
        let sessions = Sessions::new(8410, true);
        let start = Instant::now();
        let mut made = Vec::new();
        for second in 0..=MAX_SESSIONS as u64 {
            let now = start + Duration::from_secs(second);
            let cookie = sessions.begin(now).expect("random bytes");
            assert!(cookie.ends_with("; Secure"));
            made.push(headers(&cookie));
        }
        let now = start + Duration::from_secs(100);
        let kept = made.iter().filter(|headers| sessions.is_of_one(headers, now)).count();
        assert_eq!(kept, MAX_SESSIONS);
        assert!(!sessions.is_of_one(&made[0], now), "the one that was idle longest");
    }

    #[test]
    fn codes_work_once_and_end() {
        let sessions = Sessions::new(8410, false);
        let now = Instant::now();
        let code = sessions.code(now).expect("random bytes");
        assert!(sessions.redeem(&code, now + CODE_LIFE - Duration::from_secs(1)));
        assert!(!sessions.redeem(&code, now));
        let late = sessions.code(now).expect("random bytes");
        assert!(!sessions.redeem(&late, now + CODE_LIFE));
        for _ in 0..100 {
            sessions.code(now).expect("random bytes");
        }
        assert_eq!(sessions.state.lock().codes.len(), MAX_CODES);
    }

    #[test]
    fn failed_attempts_are_limited_by_address() {
        let sessions = Sessions::new(8410, false);
        let start = Instant::now();
        for _ in 0..MAX_FAILURES {
            assert_eq!(sessions.attempt(HERE, start, true), LoginAttempt::Granted);
            assert_eq!(sessions.attempt(HERE, start, false), LoginAttempt::Refused);
        }
        let refused = sessions.attempt(HERE, start, false);
        assert_eq!(refused, LoginAttempt::TooMany(FAILURE_WINDOW));
        assert_eq!(sessions.attempt(HERE, start, true), LoginAttempt::Granted);
        let other = "192.0.2.1".parse().expect("an address");
        assert_eq!(sessions.attempt(other, start, false), LoginAttempt::Refused);
        let later = start + FAILURE_WINDOW;
        assert_eq!(sessions.attempt(HERE, later, false), LoginAttempt::Refused);

        let one_network = |host: u16| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host));
        for host in 0..MAX_FAILURES as u16 {
            assert_eq!(sessions.attempt(one_network(host), later, false), LoginAttempt::Refused);
        }
        let refused = sessions.attempt(one_network(999), later, false);
        assert_eq!(refused, LoginAttempt::TooMany(FAILURE_WINDOW));
        for host in 0..5000_u32 {
            let address = IpAddr::V4(std::net::Ipv4Addr::from(0x0a00_0000 + host));
            sessions.attempt(address, later, false);
        }
        assert!(sessions.state.lock().failures.len() <= MAX_ADDRESSES + 1);
    }
}
