//! Redis server for tests: the one that the environment names, a local one, or one that the tests
//! start.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use redis::{Client, cmd};

use crate::folder::Folder;
use crate::tls::setting::{Authority, Pair};

/// Environment variable with the URL of a Redis that tests may write to.
const NAMED: &str = "WEIR_TEST_REDIS";
/// Default URL of a local Redis.
const USUAL: &str = "redis://127.0.0.1:6379";
/// A server's certificate and key in its folder, if it uses TLS.
const CERT: &str = "cert.pem";
const KEY: &str = "key.pem";

/// Redis server; one that a test has started ends on drop.
pub struct Server {
    pub url: String,
    own: Option<Own>,
}

/// Server that a test has started.
struct Own {
    port: u16,
    folder: Folder,
    child: Child,
}

impl Server {
    /// Returns a server that other tests may use at the same time.
    pub fn shared() -> Self {
        let named = std::env::var(NAMED).ok().filter(|url| !url.is_empty());
        let url = named.clone().unwrap_or_else(|| USUAL.to_owned());
        if answers(&url) {
            return Self { url, own: None };
        }
        assert!(named.is_none(), "{NAMED} names no Redis that answers");
        Self::own()
    }

    /// Starts a server for this test alone, which may empty and stop it.
    pub fn own() -> Self {
        Self::own_with(None)
    }

    /// Starts the same with TLS only and a certificate signed by `authority`.
    pub fn own_over_tls(authority: &Authority) -> Self {
        Self::own_with(Some(&authority.issue("redis")))
    }

    fn own_with(shown: Option<&Pair>) -> Self {
        // Another process may take the port that was free a moment ago.
        for _ in 0..5 {
            let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
            let port = listener.local_addr().expect("it is bound").port();
            drop(listener);
            let folder = Folder::new();
            if let Some(shown) = shown {
                std::fs::write(folder.file(CERT), &shown.cert).expect("it can be written");
                std::fs::write(folder.file(KEY), &shown.key).expect("it can be written");
            }
            match start(port, &folder) {
                Ok(Some(child)) => {
                    let scheme = if shown.is_some() { "rediss" } else { "redis" };
                    let url = format!("{scheme}://127.0.0.1:{port}");
                    return Self { url, own: Some(Own { port, folder, child }) };
                }
                Ok(None) => {}
                Err(error) => panic!("no Redis, and redis-server does not start: {error}"),
            }
        }
        panic!("redis-server does not start on any port");
    }

    pub fn empty(&self) {
        self.tell("FLUSHALL");
    }

    /// Deletes the leases of all requests and nothing else; returns their number.
    pub fn lose_leases(&self) -> usize {
        let mut connection = self.connection();
        let leases = Self::leases(&mut connection);
        for lease in &leases {
            cmd("DEL").arg(lease).exec(&mut connection).expect("it can be written");
        }
        leases.len()
    }

    /// Whether any request has a lease.
    pub fn has_leases(&self) -> bool {
        !Self::leases(&mut self.connection()).is_empty()
    }

    fn leases(connection: &mut redis::Connection) -> Vec<String> {
        cmd("KEYS").arg("*:lease:*").query(connection).expect("it can be read")
    }

    /// Returns a connection that stays, to change the server's settings.
    pub fn operator(&self) -> redis::Connection {
        self.connection()
    }

    fn connection(&self) -> redis::Connection {
        assert!(self.own.is_some(), "others may use it");
        let client = Client::open(&*self.url).expect("an address");
        client.get_connection().expect("it runs")
    }

    /// Makes the server save its data for a restart.
    pub fn save(&self) {
        self.tell("SAVE");
    }

    fn tell(&self, word: &str) {
        assert!(self.own.is_some(), "others may use it");
        let client = Client::open(&*self.url).expect("an address");
        let mut connection = client.get_connection().expect("it runs");
        cmd(word).exec(&mut connection).expect("it does so");
    }

    pub fn kill(&mut self) {
        let own = self.own.as_mut().expect("it is the test's own");
        own.child.kill().expect("it runs");
        own.child.wait().expect("it was killed");
    }

    /// Restarts the server with its saved data.
    pub fn start_again(&mut self) {
        let own = self.own.as_mut().expect("it is the test's own");
        let child = start(own.port, &own.folder).expect("it was started before");
        own.child = child.expect("nobody has taken its port");
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Key prefix of one test; drop deletes its keys.
pub struct Prefix {
    pub name: String,
    url: String,
}

impl Prefix {
    pub fn new(server: &Server) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-test-{}-{number}", std::process::id());
        Self { name, url: server.url.clone() }
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        // Remaining keys expire by themselves.
        let Ok(client) = Client::open(&*self.url) else { return };
        let Ok(mut connection) = client.get_connection() else { return };
        let pattern = format!("{{{}}}*", self.name);
        let keys: redis::RedisResult<Vec<String>> = cmd("KEYS").arg(pattern).query(&mut connection);
        if let Ok(keys) = keys
            && !keys.is_empty()
        {
            let _ = cmd("DEL").arg(keys).exec(&mut connection);
        }
    }
}

fn answers(url: &str) -> bool {
    let connection = Client::open(url).and_then(|client| client.get_connection());
    connection.is_ok_and(|mut connection| cmd("PING").exec(&mut connection).is_ok())
}

/// Starts a server that saves only on request, with TLS if there is a certificate, and waits until
/// it listens. Returns `None` if it exits instead.
fn start(port: u16, folder: &Folder) -> std::io::Result<Option<Child>> {
    let mut command = Command::new("redis-server");
    let port = port.to_string();
    match folder.file(CERT).exists() {
        true => command
            .args(["--port", "0", "--tls-port", &port, "--tls-auth-clients", "no"])
            .arg("--tls-cert-file")
            .arg(folder.file(CERT))
            .arg("--tls-key-file")
            .arg(folder.file(KEY)),
        false => command.args(["--port", &port]),
    };
    let mut child = command
        .args(["--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--dir"])
        .arg(folder.file(""))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut line = String::new();
    while output.read_line(&mut line)? > 0 {
        if line.contains("Ready to accept connections") {
            // The output is read to the end, so that the server never blocks on a full pipe.
            std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
            return Ok(Some(child));
        }
        line.clear();
    }
    child.wait()?;
    Ok(None)
}
