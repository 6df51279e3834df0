"""``docs/operate/plans.md``, typed by two admins into a cluster with a validator that checks keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.system.page_shell import blocks, program_folder, shell, type_page
from tests.system.page_walks import Walk
from tests.system.test_request_keys import MASTER
from tests.tidy.files import ROOT

from ringlog.stack import StackInfo

pytestmark = pytest.mark.system

PAGE = ROOT / "docs" / "operate" / "plans.md"
SETUP = """
export RINGLOG_BOOTSTRAP_SERVERS={bootstrap} RINGLOG_CLUSTER={cluster} CLUSTER={cluster}
umask 077
echo {master} >master
echo request.master=master >agents.properties
ringlog cluster create {cluster} --bootstrap {bootstrap}
ringlog agent validator --trust-config agents.properties >validator.log 2>&1 &
for name in ann bob; do
  ringlog principal create $name --role admin --request-master master --to $name.key || exit 1
  export RINGLOG_REQUEST_KEY=ann.key
done
"""


def test_two_admins_type_the_page(stack: StackInfo, cluster_name: str, tmp_path: Path) -> None:
    home, programs = tmp_path / "home", tmp_path / "programs"
    home.mkdir()
    programs.mkdir()
    with shell(home, program_folder(programs)) as typed:
        setup = SETUP.format(bootstrap=stack.bootstrap_servers, cluster=cluster_name, master=MASTER)
        status, printed = typed.run(setup)
        assert status == 0, printed
        refused = 'ringlog submit \'{"command": "EnterRecovery"'
        walk = Walk("operate/plans.md", is_compared=True, statuses={refused: 1})
        type_page(walk, blocks(PAGE.read_text(encoding="utf-8")), typed)
        status, printed = typed.run("ringlog log --by bob")
        assert (status, printed.count("ApprovePlan")) == (0, 2), printed
