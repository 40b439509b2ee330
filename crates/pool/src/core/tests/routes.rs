//! Routing of requests.

use super::*;

#[test]
fn requests_go_to_the_least_loaded_worker_then_round_robin() {
    let mut h = TestCore::new();
    h.make_ready("m-1", Origin::Declared, 0);
    h.make_ready("m-2", Origin::Declared, 0);
    let first = h.core.begin(&query("m", 100)).unwrap();
    let second = h.core.begin(&query("m", 10)).unwrap();
    assert_ne!(first.id, second.id);
    for _ in 0..9 {
        assert_eq!(h.core.begin(&query("org/m", 10)).unwrap().id, second.id, "the model reference works too");
    }
    h.core.end(&first.id, 100, at(1));
    assert_eq!(h.core.begin(&query("m", 10)).unwrap().id, first.id);
    // Idle again, they take turns.
    let mut h = TestCore::new();
    h.make_ready("m-1", Origin::Declared, 0);
    h.make_ready("m-2", Origin::Declared, 0);
    let mut turn = || {
        let id = h.core.begin(&query("m", 5)).unwrap().id;
        h.core.end(&id, 5, at(1));
        id
    };
    assert_ne!(turn(), turn());
}

#[test]
fn cached_prefix_routes_to_its_worker_until_overloaded() {
    let mut h = TestCore::new();
    h.make_ready("m-1", Origin::Declared, 0);
    h.make_ready("m-2", Origin::Declared, 0);
    let with_prefix = |tokens| RouteQuery { model: Some("m"), prefixes: &[7], tokens, ..RouteQuery::default() };
    let home = h.core.begin(&with_prefix(100)).unwrap().id;
    for _ in 0..10 {
        assert_eq!(h.core.begin(&with_prefix(100)).unwrap().id, home);
    }
    h.core.begin(&with_prefix(5000)).unwrap();
    assert_ne!(h.core.begin(&with_prefix(100)).unwrap().id, home, "too many tokens wait at that worker");
    // A retried request is routed to another worker.
    let tried = [home.clone()];
    let query = RouteQuery { tried: &tried, ..with_prefix(1) };
    assert_ne!(h.core.begin(&query).unwrap().id, home);
}

#[test]
fn longest_cached_prefix_decides_the_route() {
    let mut h = TestCore::new();
    h.make_ready("m-1", Origin::Declared, 0);
    h.make_ready("m-2", Origin::Declared, 0);
    let mut route = |prefixes: &[u64], tokens| {
        h.core.begin(&RouteQuery { model: Some("m"), prefixes, tokens, ..RouteQuery::default() }).unwrap().id
    };
    let first = route(&[1], 100);
    let second = route(&[2, 3], 10);
    assert_ne!(first, second);
    // The next two turns are routed to the same worker, although more tokens wait there.
    assert_eq!(route(&[1, 11], 10), first);
    assert_eq!(route(&[1, 11, 12], 10), first);
    // Of two cached prefixes the longer one saves more.
    assert_eq!(route(&[1, 3], 10), second);
    assert_eq!(route(&[4], 10), second, "an unknown prefix is routed to the least loaded worker");
}

#[test]
fn prefix_affinity_is_bounded_and_forgets_removed_workers() {
    let mut affinity = Affinity::default();
    (0..50_000).for_each(|prefix| affinity.set(prefix, if prefix % 2 == 0 { "a" } else { "b" }));
    assert_eq!(affinity.len(), (32_768, 32_768));
    affinity.forget("a");
    assert_eq!(affinity.len(), (16_384, 16_384));
}

#[test]
fn request_without_model_goes_to_the_only_suitable_one() {
    let mut h = TestCore::new();
    let any = RouteQuery::default();
    assert!(matches!(h.core.begin(&any), Err(NoRoute::NotReady { .. })));
    h.make_ready("m-1", Origin::Declared, 0);
    assert_eq!(h.core.begin(&any).unwrap().model, "m");
    assert_eq!(h.core.begin(&query("tgi", 1)).unwrap().model, "m", "a name that means any model");
    h.start("e-1", Origin::Declared);
    let planned = Planned { bytes: 1, task: "embed".into() };
    h.handle("e-1", Event::Planned { outcome: Ok((planned, devices())) }, 0);
    h.spawn("e-1", 0);
    h.core.ready_callback("e-1", at(0)).unwrap();
    assert_eq!(h.core.begin(&any).unwrap_err(), NoRoute::Unnamed { names: vec!["e".into(), "m".into()] });
    assert_eq!(h.core.begin(&RouteQuery { tasks: &["embed"], ..any }).unwrap().model, "e");
    let unknown = h.core.begin(&query("gpt", 1)).unwrap_err();
    assert_eq!(unknown, NoRoute::Unknown { model: "gpt".into(), names: vec!["e".into(), "m".into()] });
}
