"""Files that other programs run or obey without being asked: whoever writes one runs code at the
next push, build, test run or `cd`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from fnmatch import translate
from itertools import pairwise

#: Folders in which every file counts.
_FOLDERS = """
    .github .gitlab .forgejo .gitea .circleci .buildkite .woodpecker .teamcity .azure-pipelines
    .semaphore .builds .tekton .zuul.d zuul.d .harness .argo .argocd .kokoro .ebextensions
    .husky .githooks .git-hooks .hg
    .devcontainer .gitpod .vscode .vscode-test .idea .run .fleet .zed .nova .vim .nvim .emacs.d
    .claude .cursor .windsurf .clinerules .roo .continue .codex .gemini .kiro .aider .opencode
    .direnv .devenv .mise .cargo .mvn .yarn .bundle .gem .terraform .storybook
    sitecustomize usercustomize
"""

#: Patterns of names that count in any folder, by what runs them.
_FILES = {
    "continuous integration and deployment": """
        .gitlab-ci*.y*ml jenkinsfile* azure-pipelines*.y*ml .travis.yml .drone.yml .drone.star
        .woodpecker*.y*ml .cirrus.y*ml .cirrus.star appveyor.yml .appveyor.yml
        bitbucket-pipelines.yml buildspec*.y*ml cloudbuild*.y*ml .readthedocs.y*ml .goreleaser.y*ml
        netlify.toml vercel.json procfile* action.y*ml tiltfile .build.yml zuul.y*ml .zuul.y*ml
        codemagic.y*ml bitrise.y*ml .scrutinizer.yml wercker.yml .earthly earthfile dagger.json
        serverless.y*ml serverless.json serverless.ts samconfig.* fly.toml render.y*ml
        skaffold.y*ml renovate.json* .renovaterc* dependabot.y*ml .releaserc* .replit replit.nix
        .gitpod.y*ml .gitpod.dockerfile .devcontainer.json .mergify.yml
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
        tox.ini noxfile.py hatch_build.py fabfile.py dodo.py tasks.py invoke.y*ml pytest.py
        _pytest.py .pylintrc pylintrc .pylintrc.toml pylintrc.toml mypy.ini .mypy.ini .flake8
        .coveragerc uv.toml pdm.toml poetry.toml pip.conf .pypirc .pythonrc.py .pythonstartup
        snakefile *.smk gunicorn.conf.py
    """,
    "other languages": """
        package.json .npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs binding.gyp gulpfile.* gruntfile.*
        *.config.js *.config.cjs *.config.mjs *.config.ts *.config.cts *.config.mts
        .*rc.js .*rc.cjs .*rc.mjs .*rc.ts rakefile *.rake gemfile guardfile *.gemspec build.rs
        *.gradle *.gradle.kts gradlew gradlew.bat gradle.properties pom.xml mvnw mvnw.cmd build.xml
        *.csproj *.fsproj *.vbproj directory.build.* build.sbt build.zig mix.exs
        .eslintrc* .babelrc* .prettierrc* .mocharc* .stylelintrc* .nycrc* .swcrc .lintstagedrc*
        .commitlintrc* .huskyrc* .parcelrc bunfig.toml deno.json* .pnp.cjs .pnp.js .pnp.loader.mjs
        pnpm-workspace.yaml lerna.json nx.json turbo.json .rubocop.y*ml .rspec .irbrc .pryrc
        .simplecov cargo.toml rust-toolchain* composer.json .php-cs-fixer*.php phpunit.xml*
        nuget.config global.json *.targets *.props package.swift podfile fastfile cartfile
        .golangci.y*ml magefile.go rebar.config
    """,
    "builds": """
        makefile makefile.* gnumakefile bsdmakefile *.mk *.make justfile .justfile *.just
        taskfile.y*ml taskfile.dist.y*ml cmakelists.txt *.cmake cmakepresets.json configure
        configure.ac configure.in meson.build sconstruct sconscript wscript build build.bazel
        workspace workspace.bazel module.bazel *.bzl .bazelrc
    """,
    "containers and services": """
        dockerfile* *.dockerfile containerfile* docker-compose*.y*ml compose*.y*ml docker-bake.*
        vagrantfile crontab *.service *.timer *.socket *.desktop *.tf *.tf.json *.tfvars *.hcl
        pulumi.y*ml ansible.cfg helmfile*.y*ml
    """,
    "shells, editors, debuggers and agents": """
        .envrc .direnvrc .env .env.* .profile .bashrc .bash_profile .bash_login .bash_logout .zshrc
        .zshenv .zprofile .zlogin .zlogout .inputrc .vimrc .exrc .nvimrc .nvim.lua .dir-locals.el
        .gdbinit .lldbinit .pdbrc *.code-workspace .mcp.json .mise*.toml mise*.toml
        .tool-versions .rtx.toml .tmux.conf .screenrc .emacs .spacemacs .ideavimrc .lvimrc .lnvim.*
        .kshrc .cshrc .tcshrc .login .xprofile .xinitrc config.fish
        agents.md agents.override.md claude.md claude.local.md gemini.md .cursorrules
        .windsurfrules .clinerules* .roorules* .roomodes .aider.conf.y*ml
        opencode.json* flake.nix shell.nix default.nix devenv.nix devenv.y*ml
    """,
}
_FOLDER_NAMES = frozenset(_FOLDERS.split())
_FILE = re.compile("|".join(translate(name) for names in _FILES.values() for name in names.split()))


def folded_name(part: str) -> str:
    """Return a name as the most lenient file system reads it: without case, trailing dots and
    spaces, and invisible characters."""
    visible = "".join(c for c in part if unicodedata.category(c) != "Cf")
    # The capital of the dotless i is I.
    folded = unicodedata.normalize("NFKC", visible).casefold().replace("ı", "i")
    return folded.rstrip(". ")


def runs_by_itself(path: str) -> bool:
    """Return whether a path names such a file. A backslash separates names, too."""
    *folders, name = [folded_name(part) for part in path.replace("\\", "/").split("/")]
    if (".config", "mise") in pairwise(folders):
        return True
    return bool(_FILE.match(name)) or not _FOLDER_NAMES.isdisjoint(folders)


def any_runs_by_itself(paths: Iterable[str]) -> bool:
    return any(runs_by_itself(path) for path in paths)
