"""A cluster whose nodes know each other by certificates of a private authority, on both of their ports."""

from __future__ import annotations

import asyncio

import trustme

from support.cluster_kit import ClusterKit, create, leader_of, settled
from support.reading import values


def give_certificates(kit: ClusterKit, authority: trustme.CA) -> str:
    """Every node gets one, for its id and its address. Returns the authority's file."""
    ca = kit.home / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    for name, node in kit.nodes.items():
        issued = authority.issue_cert(name, "127.0.0.1")
        cert, key = node.home / "cert.pem", node.home / "key.pem"
        issued.cert_chain_pems[0].write_to_path(cert)
        issued.private_key_pem.write_to_path(key)
        files = f'tls_cert = "{cert}"\ntls_key = "{key}"\n'
        path = node.home / "liftpy.toml"
        text = path.read_text().replace("[cluster]\n", f'[cluster]\n{files}tls_ca = "{ca}"\n')
        path.write_text(text.replace("[pull]\n", f'[pull]\n{files}tls_client_ca = "{ca}"\n'))
    return str(ca)


async def test_nodes_follow_each_other_over_mutual_tls(tmp_path):
    kit = ClusterKit(tmp_path)
    try:
        ca = give_certificates(kit, trustme.CA())
        await asyncio.to_thread(kit.start)
        mine = kit.nodes["node-1"].home
        certificates = {"tls_ca": ca, "tls_cert": str(mine / "cert.pem"), "tls_key": str(mine / "key.pem")}
        async with kit.connect(**certificates) as lift:
            await create(lift, "s", "s", min_isr=3)
            for number in range(20):
                assert (await lift.publish("s", b"%d" % number, message_id=str(number))).offset == number
            await asyncio.to_thread(kit.kill, await leader_of(lift, "s"))
            await asyncio.to_thread(kit.start_nodes)
            await settled(lift, ["s"])
            assert await values(lift, "s") == [b"%d" % number for number in range(20)]
        assert not any("certificate verify failed" in node.log() for node in kit.nodes.values())
    finally:
        await asyncio.to_thread(kit.close)
