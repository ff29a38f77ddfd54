"""Files that other programs run or obey without being asked: whoever writes one runs code at the
next push, build, test run or `cd`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from fnmatch import translate

#: Folders in which every file counts.
_FOLDERS = """
    .github .gitlab .forgejo .gitea .circleci .buildkite .woodpecker .teamcity .azure-pipelines
    .husky .githooks .git-hooks .devcontainer .vscode .idea .zed .claude .cursor .direnv .cargo .mvn
    .hg
    sitecustomize usercustomize
"""

#: Patterns of names that count in any folder, by what runs them.
_FILES = {
    "continuous integration and deployment": """
        .gitlab-ci*.y*ml jenkinsfile* azure-pipelines*.y*ml .travis.yml .drone.yml .drone.star
        .woodpecker*.y*ml .cirrus.y*ml .cirrus.star appveyor.yml .appveyor.yml
        bitbucket-pipelines.yml buildspec*.y*ml cloudbuild*.y*ml .readthedocs.y*ml .goreleaser.y*ml
        netlify.toml vercel.json procfile* action.y*ml tiltfile
    """,
    "git": """
        .gitattributes .gitmodules .gitconfig .lfsconfig .hgrc .pre-commit-config.y*ml
        .pre-commit-hooks.y*ml lefthook*.y*ml .lefthook*.y*ml .overcommit.yml
        applypatch-msg commit-msg fsmonitor-watchman post-applypatch post-checkout post-commit
        post-index-change post-merge post-receive post-rewrite post-update pre-applypatch
        pre-auto-gc pre-commit pre-merge-commit pre-push pre-rebase pre-receive prepare-commit-msg
        proc-receive push-to-checkout reference-transaction sendemail-validate update
    """,
    "Python": """
        conftest.py sitecustomize.py usercustomize.py *.pth setup.py setup.cfg pyproject.toml
        pytest.ini .pytest.ini pytest.toml .pytest.toml conftest.so
        tox.ini noxfile.py hatch_build.py fabfile.py dodo.py
    """,
    "other languages": """
        package.json .npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs binding.gyp gulpfile.* gruntfile.*
        *.config.js *.config.cjs *.config.mjs *.config.ts *.config.cts *.config.mts
        .*rc.js .*rc.cjs .*rc.mjs .*rc.ts rakefile *.rake gemfile guardfile *.gemspec build.rs
        *.gradle *.gradle.kts gradlew gradlew.bat gradle.properties pom.xml mvnw mvnw.cmd build.xml
        *.csproj *.fsproj *.vbproj directory.build.* build.sbt build.zig mix.exs
    """,
    "builds": """
        makefile makefile.* gnumakefile bsdmakefile *.mk *.make justfile .justfile *.just
        taskfile.y*ml taskfile.dist.y*ml cmakelists.txt *.cmake cmakepresets.json configure
        configure.ac configure.in meson.build sconstruct sconscript wscript build build.bazel
        workspace workspace.bazel module.bazel *.bzl .bazelrc
    """,
    "containers and services": """
        dockerfile* *.dockerfile containerfile* docker-compose*.y*ml compose*.y*ml docker-bake.*
        vagrantfile crontab *.service *.timer
    """,
    "shells, editors, debuggers and agents": """
        .envrc .direnvrc .env .env.* .profile .bashrc .bash_profile .bash_login .bash_logout .zshrc
        .zshenv .zprofile .zlogin .zlogout .inputrc .vimrc .exrc .nvimrc .nvim.lua .dir-locals.el
        .gdbinit .lldbinit .pdbrc *.code-workspace .mcp.json .mise.toml mise.toml
        agents.md claude.md gemini.md .cursorrules .windsurfrules flake.nix shell.nix default.nix
    """,
}
_FOLDER_NAMES = frozenset(_FOLDERS.split())
_FILE = re.compile("|".join(translate(name) for names in _FILES.values() for name in names.split()))


def folded_name(part: str) -> str:
    """Return a name as the most lenient file system reads it: without case, trailing dots and
    spaces, and invisible characters."""
    visible = "".join(c for c in part if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFKC", visible).casefold().rstrip(". ")


def runs_by_itself(path: str) -> bool:
    """Return whether a path with "/" separators names such a file."""
    *folders, name = [folded_name(part) for part in path.split("/")]
    return bool(_FILE.match(name)) or not _FOLDER_NAMES.isdisjoint(folders)


def any_runs_by_itself(paths: Iterable[str]) -> bool:
    return any(runs_by_itself(path) for path in paths)
