//! Tests of the deployment examples against this program: each command, variable and key in them
//! must be valid.

use std::ffi::OsString;
use std::time::Duration;

use clap::CommandFactory as _;
use saphyr::{LoadableYamlNode as _, Yaml};

use super::{CommandLine, sources};
use crate::config::{self, AuthMode, Config};

const COMPOSE: &str = include_str!("../../deploy/compose.yaml");
const CONTAINER: &str = include_str!("../../deploy/Containerfile");
const KUBERNETES: &str = include_str!("../../deploy/kubernetes.yaml");
const UNIT: &str = include_str!("../../deploy/weir.service");

/// Parses a program's arguments as weir does.
fn understood(arguments: &[&str]) {
    let all = ["weir"].iter().chain(arguments);
    if let Err(error) = CommandLine::command().try_get_matches_from(all) {
        panic!("{arguments:?}: {error}");
    }
}

/// Loads the configuration from a file and variables.
fn configured(file: &str, variables: &[(String, String)]) -> Config {
    let folder = std::env::temp_dir();
    let number = variables.len() + file.len();
    let path = folder.join(format!("weir-deployed-{}-{number}.toml", std::process::id()));
    std::fs::write(&path, file).expect("the temporary folder can be written");
    let is_key = |name: &str| name.starts_with("WEIR_");
    let variables = variables.iter().filter(|(name, _)| is_key(name));
    let env = variables.map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let loaded = config::load(sources::figment(Some(&path), None, env, []));
    std::fs::remove_file(&path).expect("it was just written");
    loaded.unwrap_or_else(|problems| panic!("{problems:#?}")).0
}

fn documents(text: &str) -> Vec<Yaml<'_>> {
    Yaml::load_from_str(text).expect("YAML")
}

fn text(node: &Yaml<'_>) -> String {
    let number = || node.as_integer().map(|number| number.to_string());
    node.as_str().map(str::to_owned).or_else(number).unwrap_or_else(|| panic!("{node:?}"))
}

fn texts(node: &Yaml<'_>) -> Vec<String> {
    node.as_sequence().expect("a list").iter().map(text).collect()
}

/// Returns the lines of a unit's section, by name.
fn unit(name: &str) -> Vec<String> {
    let lines = UNIT.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let pairs = lines
        .filter(|line| !line.starts_with('['))
        .map(|line| line.split_once('=').unwrap_or_else(|| panic!("{line:?} is no setting")));
    pairs.filter(|(own, _)| *own == name).map(|(_, value)| value.to_owned()).collect()
}

#[test]
fn the_unit_runs_what_there_is() {
    let commands = ["ExecStart", "ExecReload"].map(unit).concat();
    let own = commands.iter().filter_map(|command| command.strip_prefix("/usr/local/bin/weir "));
    let own: Vec<Vec<&str>> = own.map(|rest| rest.split(' ').collect()).collect();
    assert_eq!(own.iter().map(|words| words[0]).collect::<Vec<_>>(), ["serve", "check"]);
    own.iter().for_each(|words| understood(words));
    assert!(commands.iter().any(|command| command.ends_with("kill -HUP $MAINPID")));
    // Lines that users may uncomment count, too.
    let env =
        UNIT.lines().filter_map(|line| line.trim_start_matches('#').strip_prefix("Environment="));
    let variables: Vec<(String, String)> = env
        .map(|pair| pair.split_once('=').expect("a variable"))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    assert_eq!(variables.len(), 2, "{variables:?}");
    let config = configured("", &variables);
    assert!(config.store.path.starts_with("/var/lib/weir/"));
    assert_eq!(unit("StateDirectory"), ["weir"]);
    let stop: u64 = unit("TimeoutStopSec")[0].parse().expect("seconds");
    assert!(Duration::from_secs(stop) > Duration::from_millis(config.server.drain_deadline_ms));
    assert_eq!(
        unit("RestartPreventExitStatus"),
        [super::start_error::BAD_CONFIGURATION.to_string()]
    );
}

const POD_IP: &str = "10.0.0.7";

/// A value of the Secret, for the variable of this name.
fn secret(name: &str) -> &'static str {
    match name {
        "WEIR_STORE__URL" => "postgres://weir:secret@postgres:5432/weir?sslmode=require",
        "WEIR_REDIS__URL" => "rediss://:secret@redis:6379",
        _ => "sk-secret",
    }
}

/// Metrics are read from each pod by its address, on a port that no Service has.
fn metrics_are_in_reach(config: &Config, documents: &[Yaml<'_>]) {
    let of = |kind: &str| {
        documents.iter().find(|document| document["kind"].as_str() == Some(kind)).expect(kind)
    };
    let pod = &of("Deployment")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let admin = config.admin_listen().expect("it listens");
    assert!(admin.ip().is_unspecified(), "it is reached from outside its pod");
    assert!(config.server.allowed_hosts.iter().any(|host| host == POD_IP));
    let port = &container["ports"][1];
    assert_eq!(port["containerPort"].as_integer(), Some(i64::from(admin.port())));
    assert_eq!(of("Service")["spec"]["ports"].as_sequence().map(Vec::len), Some(1));

    let open = of("NetworkPolicy")["spec"]["ingress"].as_sequence().expect("a list");
    let names: Vec<String> = open.iter().map(|open| text(&open["ports"][0]["port"])).collect();
    assert_eq!(names, [text(&container["ports"][0]["name"]), text(&port["name"])]);
    let is_bounded: Vec<bool> =
        open.iter().map(|open| open.as_mapping_get("from").is_some()).collect();
    assert_eq!(is_bounded, [false, true]);

    let volume = &pod["volumes"][1];
    assert_eq!(text(&volume["name"]), text(&container["volumeMounts"][1]["name"]));
    let (folder, item) =
        (&container["volumeMounts"][1]["mountPath"], &volume["secret"]["items"][0]);
    let file = format!("{}/{}", text(folder), text(&item["path"]));
    assert_eq!(config.admin.token_file, file);
    assert!(KUBERNETES.contains(&format!("--from-literal={}=", text(&item["key"]))));
}

#[test]
fn the_pods_run_what_there_is() {
    let documents = documents(KUBERNETES);
    let of = |kind: &str| {
        documents.iter().find(|document| document["kind"].as_str() == Some(kind)).expect(kind)
    };
    let (deployment, service) = (of("Deployment"), of("Service"));
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let arguments = texts(&container["args"]);
    understood(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let variables: Vec<(String, String)> = container["env"]
        .as_sequence()
        .expect("variables")
        .iter()
        .map(|variable| {
            let name = text(&variable["name"]);
            let value = match name.as_str() {
                "POD_IP" => POD_IP.to_owned(),
                "WEIR_SERVER__ALLOWED_HOSTS" => {
                    text(&variable["value"]).replace("$(POD_IP)", POD_IP)
                }
                _ => {
                    assert_eq!(text(&variable["valueFrom"]["secretKeyRef"]["name"]), "weir");
                    secret(&name).to_owned()
                }
            };
            (name, value)
        })
        .collect();
    let file = text(&of("ConfigMap")["data"]["weir.toml"]);
    let config = configured(&file, &variables);
    assert_eq!(config.auth.mode, AuthMode::Keys);
    assert!(config.server.listen.ip().is_unspecified(), "it is reached from outside its pod");
    assert!(variables.iter().any(|(name, _)| Some(&**name) == config.upstream.api_key.variable()));
    assert!(config.store.url.is_some() && !config.redis.url.expose().is_empty());

    // The mounted file is the one that weir reads, and the ports are weir's.
    let folder = text(&container["volumeMounts"][0]["mountPath"]);
    assert_eq!(arguments.last(), Some(&format!("{folder}/weir.toml")));
    assert_eq!(
        text(&pod["volumes"][0]["configMap"]["name"]),
        text(&of("ConfigMap")["metadata"]["name"])
    );
    let port = i64::from(config.server.listen.port());
    assert_eq!(container["ports"][0]["containerPort"].as_integer(), Some(port));
    assert_eq!(service["spec"]["ports"][0]["port"].as_integer(), Some(port));
    let names = [&service["spec"]["ports"][0]["targetPort"], &container["ports"][0]["name"]];
    assert_eq!(text(names[0]), text(names[1]));
    let label = text(&service["spec"]["selector"]["app"]);
    assert_eq!(text(&deployment["spec"]["template"]["metadata"]["labels"]["app"]), label);
    assert_eq!(text(&deployment["spec"]["selector"]["matchLabels"]["app"]), label);
    let service_name = text(&service["metadata"]["name"]);
    assert!(config.server.allowed_hosts.contains(&service_name), "callers are answered by it");

    metrics_are_in_reach(&config, &documents);

    // Probes use the health endpoints, and the grace period covers the shutdown.
    for (probe, path) in [("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")] {
        assert_eq!(text(&container[probe]["httpGet"]["path"]), path);
    }
    let grace = pod["terminationGracePeriodSeconds"].as_integer().expect("seconds");
    let pause =
        container["lifecycle"]["preStop"]["sleep"]["seconds"].as_integer().expect("seconds");
    let drain = i64::try_from(config.server.drain_deadline_ms).expect("a while") / 1000;
    assert!(grace > pause + drain, "{grace} is not more than {pause} and {drain}");
}

#[test]
fn the_containers_run_what_there_is() {
    let line = |start: &str| {
        let found = CONTAINER.lines().find_map(|line| line.strip_prefix(start));
        found.unwrap_or_else(|| panic!("{start}"))
    };
    let command: Vec<String> = serde_json::from_str(line("CMD ")).expect("a list");
    understood(&command.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(line("ENTRYPOINT "), r#"["weir"]"#);
    let (name, value) = line("ENV ").split_once('=').expect("a variable");
    let listening = (name.to_owned(), value.to_owned());
    let config = configured("", std::slice::from_ref(&listening));
    assert!(config.server.listen.ip().is_unspecified(), "it is reached from outside its container");
    assert_eq!(line("EXPOSE "), config.server.listen.port().to_string());

    let documents = documents(COMPOSE);
    let weir = &documents[0]["services"]["weir"];
    let variables = weir["environment"].as_mapping().expect("variables");
    let mut variables: Vec<(String, String)> = variables
        .iter()
        .map(|(name, value)| {
            (text(name), text(value).replace("${POSTGRES_PASSWORD:?set it}", "secret"))
        })
        .collect();
    variables.push(listening);
    let config = configured("", &variables);
    assert!(config.store.url.is_some() && !config.redis.url.expose().is_empty());
    assert!(variables.iter().any(|(name, _)| Some(&**name) == config.upstream.api_key.variable()));
    let commands = COMPOSE.lines().filter_map(|line| line.split_once("exec weir weir "));
    let commands: Vec<Vec<&str>> = commands.map(|(_, rest)| rest.split(' ').collect()).collect();
    assert_eq!(commands.len(), 2);
    commands.iter().for_each(|words| understood(words));
    assert_eq!(text(&weir["build"]["dockerfile"]), "deploy/Containerfile");
}

/// Commands in the comments of the examples, which people copy.
#[test]
fn commands_in_the_documents_can_be_typed() {
    let given = KUBERNETES.lines().filter_map(|line| line.split_once("exec deploy/weir -- weir "));
    let given: Vec<Vec<&str>> = given.map(|(_, rest)| rest.split(' ').collect()).collect();
    assert_eq!(given.len(), 1);
    given.iter().for_each(|words| understood(words));
}
