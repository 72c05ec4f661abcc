"""One file per dataset: where its images come from and how they are laid out."""

from pflbed.folders import oddities, scan
from pflbed.images import open_file
from pflbed.sources import arrays, cifar, femnist, gld23k, office_home, pacs
from pflbed.sources.base import Source
from pflbed.spec import Spec

__all__ = ["FOLDER", "SOURCES", "Source"]

FOLDER = Source(
    name="folder",
    title="a folder of images",
    home="images of your own",
    layout="them as <domain>/<class>/<image> into the data folder",
    scan=scan,
    open_image=open_file,
    counts={},
    spec=Spec(),
    oddities=oddities,
)
SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        pacs.SOURCE,
        office_home.SOURCE,
        gld23k.SOURCE,
        *cifar.SOURCES,
        femnist.SOURCE,
        arrays.SOURCE,
        FOLDER,
    )
}
