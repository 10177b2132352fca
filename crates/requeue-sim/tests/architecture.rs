//! Checks the source tree against `docs/contributing/architecture.md`: every file that the page
//! names exists, every module has one line, and a module imports only modules that are lower on the
//! page.
//!
//! `CRATE=crates/requeue cargo test -p requeue-sim --test architecture -- --nocapture` also prints the
//! imports of a crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::Visit;

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two levels up").to_owned()
}

/// The section of one crate: `` ### `crates/NAME` ``, then a list of modules from top to bottom,
/// and perhaps a list of exceptions.
struct Section {
    /// The directory of the sources.
    src: PathBuf,
    /// The modules of each layer, as paths below `src` without `.rs`, from the top.
    layers: Vec<Vec<String>>,
    /// Imports of modules that are higher on the page, for which the page gives a reason.
    exceptions: BTreeSet<(String, String)>,
}

fn sections(page: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut in_code = false;
    for line in page.lines() {
        in_code ^= line.starts_with("```");
        if in_code {
            continue;
        }
        if line.starts_with('#') {
            if let Some(name) = line.strip_prefix("### `").and_then(|rest| rest.strip_suffix('`')) {
                let src = root().join(name).join("src");
                let (layers, exceptions) = (Vec::new(), BTreeSet::new());
                sections.push(Section { src, layers, exceptions });
            }
            continue;
        }
        let (Some(section), Some(item)) =
            (sections.last_mut(), line.trim_start().strip_prefix("- "))
        else {
            continue;
        };
        let Some((names, _)) = item.split_once(": ") else { continue };
        let module = |name: &str| {
            let name = name.trim().trim_matches('`');
            name.trim_end_matches('/').trim_end_matches(".rs").to_owned()
        };
        if let Some((from, to)) = names.split_once(" → ") {
            section.exceptions.insert((module(from), module(to)));
        } else if names.starts_with('`') {
            section.layers.push(names.split(',').map(module).collect());
        }
    }
    sections
}

/// Collects the source files below `dir`, without those that only tests use.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory of the repository") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && name != "tests" && name != "bin" {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !["tests", "main"].contains(&name)
        {
            found.push(path);
        }
    }
}

/// Returns the module of a file: its path below `src`, without the extension and without `mod`.
fn module_of(src: &Path, file: &Path) -> String {
    let path = file.strip_prefix(src).expect("it was found there").with_extension("");
    let path = if path.ends_with("mod") { path.parent().unwrap_or(&path).to_owned() } else { path };
    path.to_str().expect("names are ASCII").to_owned()
}

/// The paths in a file that name items of the same crate. Each path is stored as its segments below
/// the crate's root. Test code is left out.
struct Imports {
    module: Vec<String>,
    found: BTreeSet<Vec<String>>,
    /// The last segments of paths into other crates.
    foreign: BTreeSet<String>,
}

impl Imports {
    const fn new(module: Vec<String>) -> Self {
        Self { module, found: BTreeSet::new(), foreign: BTreeSet::new() }
    }

    fn note(&mut self, segments: &[String]) {
        let mut path = match segments.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("super") => {
                let mut parent = self.module.clone();
                parent.pop();
                parent
            }
            Some("self") => self.module.clone(),
            _ => {
                self.foreign.extend(segments.last().cloned());
                return;
            }
        };
        for segment in &segments[1..] {
            match segment.as_str() {
                "super" => drop(path.pop()),
                "self" => {}
                _ => path.push(segment.clone()),
            }
        }
        self.found.insert(path);
    }

    fn walk(&mut self, tree: &syn::UseTree, before: &[String]) {
        let with = |name: String| [before, &[name]].concat();
        match tree {
            syn::UseTree::Path(path) => self.walk(&path.tree, &with(path.ident.to_string())),
            syn::UseTree::Name(name) => self.note(&with(name.ident.to_string())),
            syn::UseTree::Rename(name) => self.note(&with(name.ident.to_string())),
            syn::UseTree::Glob(_) => self.note(before),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.walk(tree, before));
            }
        }
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition.contains("test") && !condition.contains("not")
        }
        _ => false,
    })
}

impl<'ast> Visit<'ast> for Imports {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.walk(&item.tree, &[]);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_test(&item.attrs) {
            syn::visit::visit_item_impl(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            syn::visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            syn::visit::visit_item_fn(self, item);
        }
    }

    // `pub(crate)` contains a path, but does not import anything.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.note(&segments);
        syn::visit::visit_path(self, path);
    }
}

/// Returns the names that a file re-exports, and for each name its path below the crate's root, or
/// `None` for a name of another crate.
fn reexports(file: &syn::File) -> BTreeMap<String, Option<Vec<String>>> {
    let mut names = BTreeMap::new();
    for item in &file.items {
        if let syn::Item::Use(item) = item
            && !matches!(item.vis, syn::Visibility::Inherited)
        {
            let mut imports = Imports::new(Vec::new());
            imports.walk(&item.tree, &[]);
            names.extend(imports.foreign.into_iter().map(|name| (name, None)));
            for path in imports.found {
                if let Some(name) = path.last() {
                    names.insert(name.clone(), Some(path.clone()));
                }
            }
        }
    }
    names
}

/// Returns the imports of a crate from module to module.
fn imports(src: &Path) -> BTreeSet<(String, String)> {
    let mut found = Vec::new();
    files(src, &mut found);
    let parse = |file: &PathBuf| {
        let text = fs::read_to_string(file).expect("a file of the repository");
        syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    };
    let parsed: BTreeMap<String, syn::File> =
        found.iter().map(|file| (module_of(src, file), parse(file))).collect();
    let root = parsed.get("lib").map(reexports).unwrap_or_default();
    // The module of a path is its longest prefix that is a file.
    let resolve = |mut path: Vec<String>| {
        match path.first().and_then(|name| root.get(name)) {
            Some(None) => return None,
            Some(Some(origin)) => path.clone_from(origin),
            None => {}
        }
        while !path.is_empty() {
            let module = path.join("/");
            if parsed.contains_key(&module) {
                return Some(module);
            }
            path.pop();
        }
        Some("lib".to_owned())
    };
    let mut imports = BTreeSet::new();
    for (module, file) in &parsed {
        let segments = module.split('/').map(str::to_owned).collect();
        let mut visitor = Imports::new(segments);
        if module == "lib" {
            visitor.module.clear();
        }
        visitor.visit_file(file);
        for path in visitor.found {
            if let Some(to) = resolve(path).filter(|to| to != module) {
                imports.insert((module.clone(), to));
            }
        }
    }
    imports
}

impl Section {
    /// Returns the layer of a module, and the name on the page that determines it: the longest name
    /// that is the module itself or a folder above it.
    fn layer(&self, module: &str) -> Option<(usize, &str)> {
        let named = self
            .layers
            .iter()
            .enumerate()
            .flat_map(|(layer, names)| names.iter().map(move |name| (layer, name.as_str())));
        let is_within = |name: &str| {
            module.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        named.filter(|(_, name)| is_within(name)).max_by_key(|(_, name)| name.len())
    }

    fn complaints(&self) -> Vec<String> {
        let src = self.src.strip_prefix(root()).unwrap_or(&self.src).display();
        let mut complaints = Vec::new();
        let mut named = BTreeSet::new();
        for name in self.layers.iter().flatten() {
            if !named.insert(name) {
                complaints.push(format!("{src}: the page has two lines for `{name}`"));
            }
            let (file, folder) = (self.src.join(format!("{name}.rs")), self.src.join(name));
            if !file.is_file() && !folder.is_dir() {
                complaints.push(format!("{src}: there is no `{name}`, which the page names"));
            }
        }
        let mut found = Vec::new();
        files(&self.src, &mut found);
        for file in found {
            let module = module_of(&self.src, &file);
            if module != "lib" && self.layer(&module).is_none() {
                complaints.push(format!("{src}: the page has no line for `{module}`"));
            }
        }
        let mut unused = self.exceptions.clone();
        for (from, to) in imports(&self.src) {
            // A module and its children belong together, and the crate's root is above all other
            // modules.
            if from == "lib" || are_related(&from, &to) {
                continue;
            }
            let allowed = match (self.layer(&from), self.layer(&to)) {
                (Some((from, _)), Some((to, _))) => from <= to,
                _ => to != "lib",
            };
            let is_exception = self.exceptions.contains(&(from.clone(), to.clone()));
            unused.remove(&(from.clone(), to.clone()));
            if !allowed && !is_exception {
                complaints
                    .push(format!("{src}: `{from}` imports from `{to}`, which stands above it"));
            }
        }
        for (from, to) in unused {
            complaints.push(format!("{src}: the exception `{from}` → `{to}` is not needed"));
        }
        complaints
    }
}

#[test]
fn the_page_and_the_source_tree_agree() {
    let path = root().join("docs/contributing/architecture.md");
    let page = fs::read_to_string(&path).expect("docs/contributing/architecture.md");
    let sections = sections(&page);
    assert!(sections.len() >= 5, "the page has a section for each crate");
    if let Ok(name) = std::env::var("CRATE") {
        for (from, to) in imports(&root().join(name).join("src")) {
            println!("{from} -> {to}");
        }
    }
    let complaints: Vec<_> = sections.iter().flat_map(Section::complaints).collect();
    assert!(complaints.is_empty(), "docs/contributing/architecture.md:\n{}", complaints.join("\n"));
}

/// Returns true if one of the two modules is a folder above the other module.
fn are_related(from: &str, to: &str) -> bool {
    to.starts_with(&format!("{from}/")) || from.starts_with(&format!("{to}/"))
}

/// Returns the largest set of modules that import each other, directly or through other modules of the set.
fn largest_circle(imports: &BTreeSet<(String, String)>) -> BTreeSet<&str> {
    let reached_from = |start| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(module) = next.pop() {
            for (from, to) in imports {
                let counts = from == module && from != "lib" && !are_related(from, to);
                if counts && reached.insert(to.as_str()) {
                    next.push(to);
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        imports.iter().map(|(from, _)| (from.as_str(), reached_from(from))).collect();
    let leads_back = |module: &str, other: &str| {
        reached.get(other).is_some_and(|others| others.contains(module))
    };
    let circles = reached.iter().map(|(module, others)| -> BTreeSet<&str> {
        others.iter().copied().filter(|other| leads_back(module, other)).collect()
    });
    circles.max_by_key(BTreeSet::len).unwrap_or_default()
}

#[test]
fn at_most_two_modules_import_each_other() {
    let page =
        fs::read_to_string(root().join("docs/contributing/architecture.md")).expect("the page");
    let mut complaints = Vec::new();
    for section in sections(&page) {
        let src = section.src.strip_prefix(root()).expect("a directory of the repository");
        let imports = imports(&section.src);
        let circle = largest_circle(&imports);
        if circle.len() > 2 {
            complaints.push(format!("{}: {} modules: {circle:?}", src.display(), circle.len()));
        }
    }
    assert!(complaints.is_empty(), "circles of imports:\n{}", complaints.join("\n"));
}

#[test]
fn a_module_with_two_lines_is_reported() {
    let page = "### `crates/requeue-sim`\n\n- `model/`: The model.\n- `model/`: The model.\n";
    let complaints = sections(page)[0].complaints();
    let twice = |complaint: &&String| complaint.ends_with("the page has two lines for `model`");
    assert_eq!(complaints.iter().filter(twice).count(), 1, "{complaints:?}");
}

#[test]
fn every_link_of_the_page_leads_to_a_file() {
    let page =
        fs::read_to_string(root().join("docs/contributing/architecture.md")).expect("the page");
    for link in page.split("](").skip(1) {
        let target = link.split([')', '#']).next().unwrap_or_default();
        let is_file = target.is_empty() || target.contains("://");
        assert!(is_file || root().join("docs/contributing").join(target).exists(), "no {target}");
    }
}
