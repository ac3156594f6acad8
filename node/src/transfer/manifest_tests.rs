#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;

use super::*;

fn write_checkpoint(place: &Path, step: u64, files: &[(&str, &[u8])]) -> PathBuf {
    let folder = place.join(step_name(step));
    fs::create_dir_all(&folder).unwrap();
    let mut manifest = Manifest {
        step,
        files: Vec::new(),
    };
    for (name, content) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        let file = ManifestFile {
            name: (*name).to_owned(),
            bytes: content.len() as u64,
            blake3: digest_of(content),
        };
        manifest.files.push(file);
    }
    fs::write(folder.join(MANIFEST_NAME), manifest.to_bytes()).unwrap();
    folder
}

fn parse_names(names: &[&str]) -> Result<Manifest, ManifestError> {
    let file = |name: &&str| ManifestFile {
        name: (*name).to_owned(),
        bytes: 0,
        blake3: digest_of(b""),
    };
    let manifest = Manifest {
        step: 1,
        files: names.iter().map(file).collect(),
    };
    Manifest::parse(&manifest.to_bytes())
}

#[test]
fn a_complete_folder_verifies_and_keeps_its_bytes() {
    let place = tempfile::tempdir().unwrap();
    let folder = write_checkpoint(place.path(), 40, &[("weights.bin", b"abc"), ("shards/0.bin", b"")]);

    let read = verify(&folder).unwrap();

    assert_eq!(read.manifest.step, 40);
    assert_eq!(read.manifest.total_bytes(), 3);
    assert_eq!(read.bytes, fs::read(folder.join(MANIFEST_NAME)).unwrap());
    assert_eq!(read.digest, digest_of(&read.bytes));
}

#[test]
fn names_that_leave_the_folder_or_repeat_are_refused() {
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    for bad in [
        "",
        "/etc/passwd",
        "../x",
        "a/../b",
        "a//b",
        "./a",
        "a/",
        "a\nb",
        "a\0b",
        "\u{1b}[2J",
        "manifest.json",
        &long,
    ] {
        assert!(
            matches!(parse_names(&[bad]), Err(ManifestError::BadName { .. })),
            "{bad:?} was taken"
        );
    }
    assert!(matches!(
        parse_names(&["a", "a"]),
        Err(ManifestError::BadName {
            reason: "is there twice",
            ..
        })
    ));
    assert!(parse_names(&["a", "b/c", "ü.bin", "..a"]).is_ok());
}

#[test]
fn sizes_that_overflow_together_are_refused() {
    let file = |name: &str| ManifestFile {
        name: name.to_owned(),
        bytes: u64::MAX,
        blake3: digest_of(b""),
    };
    let manifest = Manifest {
        step: 1,
        files: vec![file("a"), file("b")],
    };
    assert!(matches!(
        Manifest::parse(&manifest.to_bytes()),
        Err(ManifestError::TooLarge)
    ));
}

#[test]
fn a_short_a_changed_and_a_missing_file_are_told_apart() {
    let place = tempfile::tempdir().unwrap();
    let folder = write_checkpoint(place.path(), 1, &[("weights.bin", b"abcdef")]);

    fs::write(folder.join("weights.bin"), b"abc").unwrap();
    assert!(matches!(
        verify(&folder),
        Err(ManifestError::OtherSize {
            found: 3,
            expected: 6,
            ..
        })
    ));
    fs::write(folder.join("weights.bin"), b"abcdeF").unwrap();
    assert!(matches!(verify(&folder), Err(ManifestError::OtherContent { .. })));
    fs::remove_file(folder.join("weights.bin")).unwrap();
    assert!(matches!(verify(&folder), Err(ManifestError::Read { .. })));
}

#[test]
fn a_folder_renamed_to_another_step_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let folder = write_checkpoint(place.path(), 1, &[("a", b"a")]);
    let renamed = place.path().join("step-2");
    fs::rename(folder, &renamed).unwrap();
    assert!(matches!(
        verify(&renamed),
        Err(ManifestError::OtherStep { folder: 2, manifest: 1 })
    ));
}

#[test]
fn links_and_pipes_are_not_followed() {
    let place = tempfile::tempdir().unwrap();
    let outside = place.path().join("secret");
    fs::write(&outside, b"abc").unwrap();
    let folder = write_checkpoint(place.path(), 1, &[("a", b"abc"), ("sub/b", b"abc")]);

    fs::remove_file(folder.join("a")).unwrap();
    symlink(&outside, folder.join("a")).unwrap();
    assert!(matches!(verify(&folder), Err(ManifestError::Read { .. })));

    fs::remove_file(folder.join("a")).unwrap();
    nix::unistd::mkfifo(
        &folder.join("a"),
        nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR,
    )
    .unwrap();
    assert!(matches!(verify(&folder), Err(ManifestError::Read { .. })));

    fs::remove_file(folder.join("a")).unwrap();
    fs::write(folder.join("a"), b"abc").unwrap();
    let elsewhere = place.path().join("elsewhere");
    fs::rename(folder.join("sub"), &elsewhere).unwrap();
    symlink(&elsewhere, folder.join("sub")).unwrap();
    assert!(matches!(verify(&folder), Err(ManifestError::Read { .. })));
}

#[test]
fn only_canonical_step_names_count() {
    let cases = [
        ("step-0", Some(0)),
        ("step-40", Some(40)),
        ("step-040", None),
        ("step-+4", None),
        ("step-", None),
        ("step-40.tmp", None),
        ("step-18446744073709551615", Some(u64::MAX)),
        ("step-18446744073709551616", None),
    ];
    for (name, expected) in cases {
        assert_eq!(step_of(name), expected, "{name}");
    }
}

#[test]
fn the_newest_complete_checkpoint_is_chosen_past_a_truncated_one() {
    let place = tempfile::tempdir().unwrap();
    assert!(newest_verified(&place.path().join("absent")).unwrap().is_none());
    write_checkpoint(place.path(), 9, &[("w", b"nine")]);
    write_checkpoint(place.path(), 10, &[("w", b"ten")]);
    let truncated = write_checkpoint(place.path(), 11, &[("w", b"eleven")]);
    fs::write(truncated.join("w"), b"ele").unwrap();
    fs::create_dir(place.path().join("step-12")).unwrap();
    fs::create_dir(place.path().join("step-13.tmp")).unwrap();

    let (folder, read) = newest_verified(place.path()).unwrap().unwrap();

    assert_eq!(read.manifest.step, 10);
    assert_eq!(folder, place.path().join("step-10"));
}
